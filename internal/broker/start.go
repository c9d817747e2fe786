package broker

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/confine"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/proc"
	"vnic.dev/vnic/internal/scm"
	"vnic.dev/vnic/internal/wire/gateway"
)

const (
	On  = "on"
	Log = "log" // nothing is refused; the broker counts calls that On would refuse, and logs the first maxKinds kinds
	Off = "off"
)

// CheckMode returns an error for a string that is no mode.
func CheckMode(mode string) error {
	if mode != On && mode != Log && mode != Off {
		return fmt.Errorf("--sandbox %s: on, log or off", mode)
	}
	return nil
}

// Config has the sandbox's mode, and lists what a broker may do for its process.
type Config struct {
	Mode string
	// NAT, Policy and Forwards are as in gateway.Options.
	NAT      bool
	Policy   gateway.Policy
	Forwards []gateway.Forward
	Connect  []string // paths of the Unix sockets for Client.Connect
	Memory   string   // Client.OldMemory searches for memfds whose names begin with it
	Monitor  []string // QMP commands that may reach QEMUs' monitors (Client.Monitor)
}

// argument is the only argument of a broker, after the program's name.
const argument = "__broker"

// Is reports whether a process with these arguments (as os.Args) is a broker.
func Is(args []string) bool { return len(args) == 2 && args[1] == argument }

// Start starts a broker for this process. The broker also inherits this process's descriptors without close-on-exec.
func Start(c Config) (*Client, error) {
	b, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	ours, theirs, err := scm.MessagePair()
	if err != nil {
		return nil, err
	}
	f, err := theirs.File()
	if err = errors.Join(err, theirs.Close()); err != nil {
		return nil, errors.Join(err, ours.Close())
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{os.Args[0], argument}
	cmd.Env = append(os.Environ(), limits.Environ()...)
	cmd.Stdin, cmd.Stderr, cmd.ExtraFiles = bytes.NewReader(b), os.Stderr, []*os.File{f}
	child, err := proc.StartChild(cmd)
	_ = f.Close()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("sandbox: the process outside of it: %w", err), ours.Close())
	}
	k := newClient(ours)
	k.child = child
	return k, nil
}

// Main runs a broker, with its Config on standard input and the process's socket as descriptor 3, and returns
// the exit status.
func Main() int {
	// Other processes of this user, without privileges, then cannot read the broker's memory.
	_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	// The confined process needs the broker to end its QEMUs when systemd or pkill(1) signals all processes of
	// vnic.
	signal.Ignore(unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	var config Config
	var c *net.UnixConn
	err := json.NewDecoder(os.Stdin).Decode(&config)
	if err == nil {
		unix.CloseOnExec(3)
		c, err = scm.Conn[*net.UnixConn](3)
	}
	if err != nil {
		log.Error("broker", "err", err)
		return 1
	}
	serve(c, config, log)
	return 0
}

// Confine forbids this process, in mode On, to open files outside of paths, as far as the kernel has Landlock, and to
// make system calls that are neither in calls nor in more; at its end it also forbids the calls in handover that more
// does not have without conditions (profile.go). In mode Log it forbids nothing, and the broker counts and logs calls
// that mode On would refuse. Callers pass no other mode. Call Keep, Draft, Own, Monitor, Give and ListenUDP before.
// The warning names parts of the sandbox that do not work on this machine.
func (k *Client) Confine(mode string, more Calls) (warning string, err error) {
	_ = time.Now().Local().String() // loads the time zone's file, which cannot be opened later
	broker := -1
	if err := scm.Control(k.conn, func(fd int) error { broker = fd; return nil }); err != nil {
		return "", err
	}
	if mode == On {
		err := confine.Files(paths)
		if errors.Is(err, confine.ErrNoLandlock) {
			warning, err = fmt.Sprintf("%v: files of this user can still be opened for reading", err), nil
		}
		if err != nil {
			return "", err
		}
	}
	list := append(calls(os.Getpid(), broker), more...)
	if mode == Log {
		confine.LetLook(k.child.PID())
		list = confine.Trial(list)
	}
	listener, err := confine.Calls(list, mode == Log)
	if errors.Is(err, confine.ErrNoListener) && mode == On {
		if warning != "" {
			warning += "; "
		}
		warning, err = warning+err.Error(), nil
	}
	if err != nil {
		return "", err
	}
	var fds []int
	if listener != nil {
		fds = []int{int(listener.Fd())}
		defer listener.Close()
	}
	err = k.conn.WriteFDs(opSeal.message(0, none{}), fds) // nobody waits for the answer (id 0)
	if err == nil && mode == On {
		err = confine.Forbid(slices.DeleteFunc(slices.Clone(handover), func(nr uintptr) bool {
			return slices.ContainsFunc(more, func(c confine.Call) bool { return c.Nr == nr && len(c.If) == 0 })
		})...)
	}
	if err == nil {
		k.mode.Store(&mode)
	}
	return warning, err
}

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

// The modes of a sandbox.
const (
	On  = "on"
	Log = "log" // no call is refused; calls that On would refuse are logged
	Off = "off"
)

// CheckMode returns an error for a string that is no mode.
func CheckMode(mode string) error {
	if mode != On && mode != Log && mode != Off {
		return fmt.Errorf("--sandbox %s: on, log or off", mode)
	}
	return nil
}

// Config lists what a broker may do for its process. The Config of a running broker does not change.
type Config struct {
	Mode string // On or Log
	// NAT, Policy and Forwards are the fields of gateway.Options with these names.
	NAT      bool
	Policy   gateway.Policy
	Forwards []gateway.Forward
	Connect  []string // paths of the Unix sockets to which the broker connects at the process's request
	Memory   string   // the beginning of the names of memfds that OldMemory looks for
	Monitor  []string // commands that the process may give to its QEMUs' monitors
}

// argument is the argument with which Start starts this program as a broker. No command has this
// name.
const argument = "__broker"

// Is reports whether a process with these arguments is a broker that Start has started.
func Is(args []string) bool { return len(args) == 2 && args[1] == argument }

// Start starts a broker for this process. The broker inherits descriptors without close-on-exec: the caller should
// have none.
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

// Main runs a broker and returns the exit status. It reads the configuration from standard input, and
// requests from descriptor 3.
func Main() int {
	_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) // other processes of this user cannot read this one's memory
	// systemd and pkill(1) signal each process of vnic. The broker ignores these signals, because the confined process
	// still needs the broker while it ends its QEMUs.
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

// Confine forbids this process all system calls that are neither in profile.go nor in more; in mode Log it forbids
// none, and the broker counts and logs them. The caller calls Keep, Draft, Own, Monitor, Give and ListenUDP before.
// The warning names the parts of the sandbox that do not work on this machine; "": all work.
func (k *Client) Confine(mode string, more Calls) (warning string, err error) {
	_ = time.Now().Local().String() // reads the time zone's file, which cannot be opened later
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
	err = k.conn.WriteFDs(opSeal.message(0, none{}), fds) // nobody waits for the answer
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

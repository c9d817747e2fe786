package broker

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/confine"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/proc"
	"vnic.dev/vnic/internal/wire/gateway"
)

// What a sandbox does.
const (
	On  = "on"
	Log = "log" // nothing is refused: what would be makes a line
	Off = "off"
)

// CheckMode says what is wrong with a mode.
func CheckMode(mode string) error {
	if mode != On && mode != Log && mode != Off {
		return fmt.Errorf("--sandbox %s: on, log or off", mode)
	}
	return nil
}

// Config is what a broker does for its process. It stays as it is.
type Config struct {
	Mode     string // On or Log
	NAT      bool   // of the gateway, as the two that follow
	Policy   gateway.Policy
	Forwards []gateway.Forward
	Connect  []string // sockets that the process may ask to be connected to
	Memory   string   // how names of memfds begin that OldMemory looks for
	Monitor  []string // commands that the process may give to the monitors of its QEMUs
}

// config is a Config on its way.
type config struct {
	Mode        string
	NAT         bool
	HostPorts   string
	Deny, Allow []netip.Prefix
	Forwards    []gateway.Forward
	Connect     []string
	Memory      string
	Monitor     []string
}

func (c *Config) encode() ([]byte, error) {
	return json.Marshal(config{c.Mode, c.NAT, c.Policy.HostPorts.String(), c.Policy.Deny, c.Policy.Allow, c.Forwards,
		c.Connect, c.Memory, c.Monitor})
}

func decode(b []byte) (Config, error) {
	var c config
	if err := json.Unmarshal(b, &c); err != nil {
		return Config{}, err
	}
	ports, err := gateway.ParsePorts(c.HostPorts)
	return Config{c.Mode, c.NAT, gateway.Policy{HostPorts: ports, Deny: c.Deny, Allow: c.Allow}, c.Forwards, c.Connect,
		c.Memory, c.Monitor}, err
}

// argument makes this program a broker. It is no command's name.
const argument = "__broker"

// Is says whether this process was started by Start.
func Is(args []string) bool { return len(args) == 2 && args[1] == argument }

// Start starts a broker for this process. What has no close-on-exec is its too, so there should be
// nothing.
func Start(c Config) (*Client, error) {
	b, err := c.encode()
	if err != nil {
		return nil, err
	}
	ours, theirs, err := pair()
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

// Main is a broker: its configuration comes on standard input, its requests on descriptor 3.
func Main() int {
	_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) // nobody of our user reads its memory
	// Who tells all of vnic to end, as systemd and pkill(1) do, tells the process, which needs this one for that.
	signal.Ignore(unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	var config Config
	var c *net.UnixConn
	var in bytes.Buffer
	_, err := in.ReadFrom(os.Stdin)
	if err == nil {
		config, err = decode(in.Bytes())
	}
	if err == nil {
		unix.CloseOnExec(3)
		c, err = conn(3)
	}
	if err != nil {
		log.Error("broker", "err", err)
		return 1
	}
	serve(c, config, log)
	return 0
}

// Confine takes from this process what profile.go does not list, nor more. Files that are to be removed have
// been named, and listeners are there. The warning says what does not hold on this machine; "": all
// does.
func (k *Client) Confine(mode string, more Calls) (warning string, err error) {
	_ = time.Now().Local().String() // reads the time zone
	fd := -1
	raw, err := k.conn.SyscallConn()
	if err == nil {
		err = raw.Control(func(own uintptr) { fd = int(own) })
	}
	if err != nil {
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
	list := append(calls(os.Getpid(), fd), more...)
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
	seal := request{op: opSeal}
	if listener == nil {
		_, err = k.conn.Write(seal.encode())
	} else {
		_, _, err = k.conn.WriteMsgUnix(seal.encode(), unix.UnixRights(int(listener.Fd())), nil)
		err = errors.Join(err, listener.Close())
	}
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

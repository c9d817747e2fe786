// Package agent is both ends of the results channel of a vnic guest: JSON lines (package jsonlines) both ways over a
// serial port.
//
// In the guest, Serve answers requests with the operations that packages have registered. On the host, a Client sends
// them. Events of the guest are "boot" once its init is done, and "panic" when its agent died. Its first message says
// which vnic it is of, and so does the host's: ends of different protocols refuse each other.
//
// Each operation runs in a goroutine of its own. The host trusts nothing that a guest sends: a line
// that is too long or no message is dropped and counted. A panic in the guest is not recovered: the
// agent's process dies and its parent, the guest's init, reports it.
package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
)

// Names of events.
const (
	EventBoot  = "boot"  // init has done its work and the agent is about to serve
	EventPanic = "panic" // the agent's process died; args are a Panic
)

// Config is /vnic/config.json of the initramfs: what the guest's init does before the agent serves.
type Config struct {
	Modules  []string `json:"modules,omitempty"`  // loaded in this order, what they need first
	Hostname string   `json:"hostname,omitempty"` // "" = the kernel's
	Channel  string   `json:"channel,omitempty"`  // "" = /dev/ttyS1
	// the virtio port PortName in place of Channel, if the kernel has it
	Port      bool `json:"port,omitempty"`
	HugePages int  `json:"hugepages,omitempty"` // 2 MiB pages to reserve
	// nodes but 0 are GPU memory: all tasks, and the huge pages, keep to node 0
	Node0  bool              `json:"node0,omitempty"`
	Sysctl map[string]string `json:"sysctl,omitempty"` // "net.core.x" or "net/core/x" to value
	Extra  map[string]string `json:"extra,omitempty"`  // for operations
	Alone  *Alone            `json:"alone,omitempty"`  // there is no results channel
	Slow   float64           `json:"slow,omitempty"`   // limits.Slow of the host, at the boot; 0: 1
}

// Alone is what a guest does whose QEMU is not ours: it brings its network up, runs a program on
// its console and powers off.
type Alone struct {
	Path   string   `json:"path"` // without a slash it is looked for in PATH of Env
	Args   []string `json:"args"` // with argv[0]
	Env    []string `json:"env"`
	Dir    string   `json:"dir"`
	Shell  bool     `json:"shell,omitempty"` // a person uses it
	Driver string   `json:"driver"`          // the kernel's, of the interfaces
	// OwnDriver says that devmem programs drive a NIC themselves: the last interface, of which the
	// kernel lets go if there are others.
	OwnDriver bool `json:"own_driver,omitempty"`
}

// ReadConfig reads what the initramfs has of it; nothing is the zero Config.
func ReadConfig() (c Config, err error) {
	b, err := os.ReadFile(ConfigPath)
	if err == nil {
		err = json.Unmarshal(b, &c)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return c, fmt.Errorf("%s: %w", ConfigPath, err)
	}
	return c, nil
}

// DefaultChannel is the guest's results channel.
const DefaultChannel = "/dev/ttyS1"

// PortName is the name of the virtio port that may be the results channel.
const PortName = "vnic.results"

// ConfigPath and ModulesPath are where the initramfs keeps what init reads.
const (
	ConfigPath  = "/vnic/config.json"
	ModulesPath = "/vnic/modules"
)

// Env is what operations know about their guest.
type Env struct {
	Config  Config   `json:"config"`
	Modules []string `json:"modules"` // loaded by init
}

// Panic are the args of EventPanic.
type Panic struct {
	Status string `json:"status"` // how the process ended
	Output string `json:"output"` // the last of what it wrote to stderr
}

// Op is an operation of the guest. Its result is sent as JSON. ctx ends when the host cancels or the guest powers off.
type Op func(ctx context.Context, args json.RawMessage) (any, error)

// Applet is a program inside the guest's one binary, run under its own name (argv[0], or the first
// argument); it returns the exit status.
type Applet func(args []string) int

var registry = struct {
	sync.Mutex
	ops     map[string]Op
	applets map[string]Applet
}{ops: map[string]Op{}, applets: map[string]Applet{}}

// Register adds an operation, before the agent serves. A later registration of a name replaces the earlier. Its
// arguments are decoded from JSON; without any they are the zero value.
func Register[A any](name string, op func(ctx context.Context, args A) (any, error)) {
	registry.Lock()
	defer registry.Unlock()
	registry.ops[name] = func(ctx context.Context, raw json.RawMessage) (any, error) {
		var args A
		if len(raw) > 0 {
			if err := json.Unmarshal(raw, &args); err != nil {
				return nil, err
			}
		}
		return op(ctx, args)
	}
}

// RegisterApplet adds an applet, before boot.Main looks for it. The image needs a link of that name
// (guestimages.Options.Applets).
func RegisterApplet(name string, main Applet) {
	registry.Lock()
	defer registry.Unlock()
	registry.applets[name] = main
}

// LookupApplet finds an applet by name.
func LookupApplet(name string) (Applet, bool) {
	registry.Lock()
	defer registry.Unlock()
	a, ok := registry.applets[name]
	return a, ok
}

// ConsoleApplet is the name of the applet that does what Alone says.
const ConsoleApplet = "vnic-console"

// ownPrefix begins the names of applets that are not for users.
const ownPrefix = "vnic-"

// Tools are the names of the applets that users may want.
func Tools() []string {
	registry.Lock()
	defer registry.Unlock()
	return slices.DeleteFunc(slices.Sorted(maps.Keys(registry.applets)),
		func(n string) bool { return strings.HasPrefix(n, ownPrefix) })
}

func lookupOp(name string) (Op, bool) {
	registry.Lock()
	defer registry.Unlock()
	op, ok := registry.ops[name]
	return op, ok
}

type ctxKey int

const (
	envKey ctxKey = iota
	progressKey
)

// EnvOf gives an operation its guest's Env.
func EnvOf(ctx context.Context) Env {
	e, _ := ctx.Value(envKey).(Env)
	return e
}

// Progress sends v to the host while an operation runs. Outside an operation it does nothing.
func Progress(ctx context.Context, v any) error {
	send, _ := ctx.Value(progressKey).(func(any) error)
	if send == nil {
		return nil
	}
	return send(v)
}

// Package agent implements both ends of the results channel of a vnic guest: JSON lines (package jsonlines)
// in both directions over a serial port or a virtio port.
//
// In the guest, [Serve] answers requests by the operations that packages have registered, and runs each request's
// operation in a goroutine of its own. On the host, a [Client] sends the requests.
//
// The first message of each end has its versions of vnic and of the protocol. An end refuses messages of another
// version of the protocol, but a guest lets any host power it off. The host does not trust a guest: it drops malformed
// lines, and counts them.
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

const (
	EventBoot  = "boot"  // init has set the guest up, and starts the agent next
	EventPanic = "panic" // init, or the agent's process, failed; args are a Panic
)

// Config has the settings of the guest's init and agent: ConfigPath in the initramfs.
type Config struct {
	Modules  []string `json:"modules,omitempty"`  // loaded in this order, each after its dependencies
	Hostname string   `json:"hostname,omitempty"` // "" = the kernel's default
	Channel  string   `json:"channel,omitempty"`  // path of the results channel; "" = /dev/ttyS1
	// try the virtio port PortName before Channel
	Port      bool `json:"port,omitempty"`
	HugePages int  `json:"hugepages,omitempty"` // 2 MiB pages to reserve
	// all nodes except node 0 are GPU memory: programs take memory from node 0
	Node0  bool              `json:"node0,omitempty"`
	Sysctl map[string]string `json:"sysctl,omitempty"` // "net.core.x" or "net/core/x" to value
	Alone  *Alone            `json:"alone,omitempty"`  // set: no results channel
	Slow   float64           `json:"slow,omitempty"`   // limits.Slow of the host at boot; 0: 1
}

// Alone is the program of a guest without a results channel. The guest configures its network, runs the
// program on its console, and powers off when the program has ended.
type Alone struct {
	Path   string   `json:"path"` // looked up in PATH of Env if it has no slash
	Args   []string `json:"args"`
	Env    []string `json:"env"`
	Dir    string   `json:"dir"`
	Shell  bool     `json:"shell,omitempty"` // interactive: a person uses it
	Driver string   `json:"driver"`          // the kernel driver of the guest's interfaces
	// programs drive the last interface's NIC themselves, without the kernel's driver
	OwnDriver bool `json:"own_driver,omitempty"`
}

// ReadConfig reads the Config from ConfigPath; if the file is missing, it returns the zero Config and no error.
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

// DefaultChannel is the device of the results channel unless Config names another one.
const DefaultChannel = "/dev/ttyS1"

// PortName is the name of the virtio port that can replace [DefaultChannel].
const PortName = "vnic.results"

// ConfigPath and ModulesPath are where init finds its settings and its modules in the initramfs.
const (
	ConfigPath  = "/vnic/config.json"
	ModulesPath = "/vnic/modules"
)

// Env describes the guest to its operations.
type Env struct {
	Config  Config   `json:"config"`
	Modules []string `json:"modules"` // Config.Modules and their dependencies: loaded by init, or built into the kernel
}

// Panic are the args of EventPanic.
type Panic struct {
	Status string `json:"status"` // of the agent's process; "init", "start": init failed, to set up or to run the agent
	Output string `json:"output"` // the end of the agent's stderr, or init's error
}

// Op is an operation of the guest; [Serve] sends its result to the host as JSON. ctx ends when the host cancels the
// operation, or Serve stops.
type Op func(ctx context.Context, args json.RawMessage) (any, error)

// Applet is a program inside the guest's single binary, run by its name. It returns the exit status.
type Applet func(args []string) int

var registry = struct {
	sync.Mutex
	ops     map[string]Op
	applets map[string]Applet
}{ops: map[string]Op{}, applets: map[string]Applet{}}

// Register adds an operation; call it before Serve.
func Register(name string, op Op) {
	registry.Lock()
	defer registry.Unlock()
	registry.ops[name] = op
}

// Decoded returns the operation that decodes its arguments from JSON, and calls op with them; without arguments it
// calls op with the zero A.
func Decoded[A any](op func(ctx context.Context, args A) (any, error)) Op {
	return func(ctx context.Context, raw json.RawMessage) (any, error) {
		var args A
		if len(raw) > 0 {
			if err := json.Unmarshal(raw, &args); err != nil {
				return nil, err
			}
		}
		return op(ctx, args)
	}
}

// RegisterApplet adds an applet; call it before boot.Main.
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

// ConsoleApplet is the name of the applet that runs Alone.
const ConsoleApplet = "vnic-console"

const ownPrefix = "vnic-"

// Tools returns the sorted names of the applets for users: the ones that do not begin with ownPrefix.
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

// EnvOf returns the guest's Env from an operation's ctx; from another ctx the zero Env.
func EnvOf(ctx context.Context) Env {
	e, _ := ctx.Value(envKey).(Env)
	return e
}

// Progress sends v to the host from a running operation, whose context is ctx. Without an operation it does
// nothing.
func Progress(ctx context.Context, v any) error {
	send, _ := ctx.Value(progressKey).(func(any) error)
	if send == nil {
		return nil
	}
	return send(v)
}

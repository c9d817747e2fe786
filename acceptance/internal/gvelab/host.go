package gvelab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"vnic.dev/vnic/assets"
	"vnic.dev/vnic/dma"
	guestimages "vnic.dev/vnic/guest-images"
	"vnic.dev/vnic/guest-images/agent"
	"vnic.dev/vnic/guest-images/boot"
	"vnic.dev/vnic/nic"
	"vnic.dev/vnic/nic/gve"
	"vnic.dev/vnic/qemu"
	"vnic.dev/vnic/vfiouser"
	"vnic.dev/vnic/wire"
)

// Ports is how many NICs a guest has.
const Ports = 2

// gpuSize is the memory of the NUMA node that passes for a GPU's: of 64 MiB the kernel now and then left less than the 13 wanted, and
// died (out of memory, nothing to kill).
const gpuSize = 128 << 20

// Main has this program be the guest's, if it is in a guest; else it returns.
func Main() {
	if _, err := os.Stat(agent.ConfigPath); err != nil {
		return
	}
	registerOps()
	os.Exit(boot.Main(os.Args))
}

// Options of Boot.
type Options struct {
	Name    string
	Cache   string                             // "" = the user's
	Connect func(port int, conn *net.UnixConn) // has the connection of a NIC; nil: Devices of this process serve it
	Console io.Writer                          // may be nil
	Log     *slog.Logger
	// TimeLimit of the guest's whole life, and of its boot.
	TimeLimit, BootLimit time.Duration
}

// Lab is a guest with its NICs.
type Lab struct {
	*qemu.Machine
	*Wires
	gpu *os.File
}

// Boot starts the guest. Close ends it, also when Boot has failed: what it returns is never nil.
func Boot(ctx context.Context, o Options) (*Lab, error) {
	l := &Lab{}
	r, err := assets.Fetch(ctx, assets.Options{CacheDir: o.Cache, VFIOUser: true})
	if err != nil {
		return l, err
	}
	img, err := guestimages.Build(ctx, guestimages.Options{CacheDir: r.Cache, ModulesDir: r.Kernel.Modules, Modules: []string{module},
		Program: "/proc/self/exe"})
	if err != nil {
		return l, err
	}
	initrd, err := img.Initrd(agent.Config{Modules: []string{module}, Hostname: "churn", Node0: true})
	if err != nil {
		return l, err
	}
	defer initrd.Close()
	if l.gpu, err = qemu.NewMemory("gpu", gpuSize); err != nil {
		return l, err
	}
	if o.Connect == nil {
		if l.Wires, err = NewWires(o.Log); err != nil {
			return l, err
		}
		o.Connect = l.Serve
	}
	c := qemu.Config{Name: o.Name, QEMU: r.QEMU, Kernel: r.Kernel, Initrd: []io.Reader{initrd}, RAMSize: 512 << 20, Accel: qemu.AccelTCG,
		Append: "log_buf_len=8M", GPUs: []qemu.GPU{{File: l.gpu, Size: gpuSize, Node: true}}, Console: o.Console, Log: o.Log,
		TimeLimit: o.TimeLimit, BootLimit: o.BootLimit}
	for i := range Ports {
		c.Netdevs = append(c.Netdevs, qemu.Netdev{VFIOUser: true, Connected: func(conn *net.UnixConn) { o.Connect(i, conn) }})
	}
	l.Machine, err = qemu.Start(ctx, c)
	return l, err
}

// Call has the guest do something; progress is what it says meanwhile.
func (l *Lab) Call(ctx context.Context, limit time.Duration, op string, args, out any, progress func(string)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("%s has taken more than %v", op, limit))
	defer cancel()
	err := l.Agent().CallProgress(ctx, op, args, out, func(raw json.RawMessage) {
		var s string
		if progress != nil && json.Unmarshal(raw, &s) == nil {
			progress(agent.Plain(s))
		}
	})
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}

// Close ends the guest, then its NICs.
func (l *Lab) Close() error {
	var err error
	if l.Machine != nil {
		err = l.Machine.Close()
	}
	if l.Wires != nil {
		l.Wires.Close()
	}
	if l.gpu != nil {
		err = errors.Join(err, l.gpu.Close())
	}
	return err
}

// Wires are the NICs and the switch between them.
type Wires struct {
	Devices [Ports]*gve.Device
	log     *slog.Logger
	sw      *wire.Switch
	stop    context.CancelCauseFunc
	ctx     context.Context

	mu      sync.Mutex
	serving []chan error // of each Serve that runs, its error
}

// NewWires makes them.
func NewWires(log *slog.Logger) (*Wires, error) {
	w := &Wires{log: log, sw: wire.NewSwitch(log)}
	w.ctx, w.stop = context.WithCancelCause(context.Background())
	files := dma.NewFiles()
	for i := range w.Devices {
		name := fmt.Sprintf("nic%d", i)
		d, err := gve.New(gve.Options{Port: nic.Config{Name: name, MAC: wire.MAC{2, 0, 0, 0, 0, byte(i + 1)}, MTU: 1500, Log: log}},
			dma.NewSpace(name, files))
		if err == nil {
			w.Devices[i] = d
			err = d.Port().Attach(w.sw, wire.LinkOptions{})
		}
		if err != nil {
			w.Close()
			return nil, err
		}
	}
	return w, nil
}

// Serve serves a NIC on a connection.
func (w *Wires) Serve(i int, conn *net.UnixConn) {
	served := make(chan error, 1)
	w.mu.Lock()
	w.serving = append(w.serving, served)
	w.mu.Unlock()
	d := w.Devices[i]
	dma.Go(func() { served <- vfiouser.NewServer(d, d.Space(), w.log).Serve(w.ctx, conn) })
}

// Stop ends the servers, as if they had failed for a reason, and gives what each has said.
func (w *Wires) Stop(why error) (errs []error) {
	w.stop(why)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, served := range w.serving {
		errs = append(errs, <-served)
	}
	w.serving = nil
	return errs
}

// Close frees all of it. QEMU is gone: the connection is seen to end a moment later, as an io_uring may hold its other end.
func (w *Wires) Close() {
	t := time.NewTimer(5 * time.Second)
	defer t.Stop()
	w.mu.Lock()
	for _, served := range w.serving {
		select {
		case err := <-served:
			served <- err // for Stop
		case <-t.C:
			t.Reset(0) // nor do the others get more
		}
	}
	w.mu.Unlock()
	w.Stop(errors.New("closed"))
	for _, d := range w.Devices {
		if d != nil {
			d.Close()
		}
	}
	_ = w.sw.Close()
}

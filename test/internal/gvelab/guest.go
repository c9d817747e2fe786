package gvelab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/devmem/kernel"
	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/test/internal/guestops"
)

const module = "gve"

// Operations of the guest. After OpSetup the ordinary streams run.
const (
	OpSetup       = "lab.setup"       // bring the links up, and start the streams
	OpTraffic     = "lab.traffic"     // wait for Bytes (0: flowing) more bytes of each stream
	OpCycles      = "lab.cycles"      // bind and unbind queues, Times times
	OpBind        = "lab.bind"        // bind queue 3, and leave it bound
	OpUnbind      = "lab.unbind"      // undo OpBind
	OpFlap        = "lab.flap"        // take interface Name down and up, Times times
	OpCarrier     = "lab.carrier"     // wait until interface Name has a carrier, or, without Up, none
	OpReconfigure = "lab.reconfigure" // change numbers of queues, sizes of rings, and MTU, as ethtool and ip do
	OpReload      = "lab.reload"      // unload and load the module, Times times
	OpRemove      = "lab.remove"      // remove eth0's device by sysfs; with Up while queue 3 is bound
	OpRescan      = "lab.rescan"      // rescan PCI, which brings the removed device back
	OpLog         = "lab.log"         // return the kernel's log, a []Record
	OpBindZero    = "lab.bindzero"    // try to bind queue 0, which must be refused (ERANGE)
	// take eth0 down, whose device is gone; return the records that the kernel logs then, up to one with Name
	OpLost = "lab.lost"
	// instead of OpSetup: connections that only send, and a queue bound and unbound
	OpOneWay  = "lab.oneway"
	OpSetters = "lab.setters" // change settings as ethtool and ip do; needs a NIC with Timestamps
	OpStats   = "lab.stats"   // return the counters of ethtool -S, a map by name
	OpReset   = "lab.reset"   // reset eth0 as ethtool --reset all does, and wait for traffic
)

// Args are the arguments of the operations.
type Args struct {
	Times int    `json:"times,omitempty"`
	Bytes uint64 `json:"bytes,omitempty"`
	Name  string `json:"name,omitempty"`
	Up    bool   `json:"up,omitempty"`
}

// guest is the state of the operations.
type guest struct {
	mu     sync.Mutex
	peer   *namespace
	gpu    *kernel.UDMABuf
	duplex *duplex
	dut    *dut
	bound  bool
	opened uint16
}

// Main is the main function of the guest's program. It does not return.
func Main() {
	g := &guest{}
	ops := map[string]func(context.Context, *Args) (any, error){
		OpSetup: g.setup, OpTraffic: g.traffic, OpCycles: g.cycles, OpBind: g.bind, OpUnbind: g.unbind, OpFlap: g.flap,
		OpCarrier: g.carrier, OpReconfigure: g.reconfigure, OpReload: g.reload, OpLog: g.log, OpBindZero: g.bindZero,
		OpLost: g.lost, OpOneWay: g.oneWay, OpSetters: g.setters, OpStats: g.stats, OpReset: g.reset,
		OpRemove: g.remove, OpRescan: g.rescan,
	}
	for name, op := range ops {
		ops[name] = func(ctx context.Context, a *Args) (any, error) {
			g.mu.Lock()
			defer g.mu.Unlock()
			return op(ctx, a)
		}
	}
	guestops.Main(ops)
}

func say(ctx context.Context, format string, args ...any) {
	// an error means that the host is gone
	_ = agent.Progress(ctx, strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "; "))
}

// links moves the peer's interface to its namespace, and brings both interfaces up.
func (g *guest) links() error {
	if err := g.peer.take(peerName); err != nil {
		return err
	}
	return errors.Join(bringUp(underTestName, underTest), g.peer.do(func() error { return bringUp(peerName, peerAddr) }))
}

func (g *guest) setup(ctx context.Context, _ *Args) (_ any, err error) {
	if g.gpu, err = kernel.NewUDMABuf(kernel.UDMABufOptions{Size: rxSize + txSize, Node: 1}); err != nil {
		return nil, err
	}
	if g.peer, err = newNamespace(); err != nil {
		return nil, err
	}
	if err := errors.Join(tcpSettings(), g.peer.do(tcpSettings)); err != nil {
		return nil, err
	}
	if err := g.links(); err != nil {
		return nil, err
	}
	if g.duplex, err = newDuplex(g.peer); err != nil {
		return nil, err
	}
	g.dut, err = openDevice(ctx, g)
	return nil, err
}

// A stream flows if flowing more bytes arrive within patience. TCP waits at most a second between two attempts
// (tcpSettings).
const (
	flowing  = 128 << 10
	patience = 30 * time.Second
)

// traffic waits, patience at most, until a.Bytes more bytes (0: flowing) have arrived on both ordinary streams and, if
// g.dut is open, on its connection: in both directions while a queue is bound, else only in host memory.
func (g *guest) traffic(ctx context.Context, a *Args) (any, error) {
	n := a.Bytes
	if n == 0 {
		n = flowing
	}
	ms := []*meter{g.duplex.in, g.duplex.out}
	switch {
	case g.bound:
		ms = append(ms, g.dut.device, g.dut.out)
	case g.dut != nil:
		ms = append(ms, g.dut.host)
	}
	limit, cancel := context.WithTimeoutCause(ctx, patience, errStalled)
	defer cancel()
	err := all(limit, n, ms...)
	if errors.Is(err, errStalled) && g.dut != nil {
		err = fmt.Errorf("%w\n%v\nour end: %s\nstats: %+v", err, g.dut.refused.Load(), g.dut.conn.State(),
			g.dut.dev.Stats())
	}
	return nil, err
}

var errStalled = fmt.Errorf("and no more in %v", patience)

func (g *guest) cycles(ctx context.Context, a *Args) (any, error) {
	for i := range a.Times {
		queues := [][]int{{3}, {2, 3}, {2}}[i%3]
		err := g.dut.bind(ctx, queues...)
		g.bound = err == nil
		if err == nil {
			_, err = g.traffic(ctx, &Args{})
		}
		if err == nil {
			_, err = g.unbind(ctx, nil)
		}
		if err == nil {
			_, err = g.traffic(ctx, &Args{})
		}
		if err != nil {
			return nil, fmt.Errorf("cycle %d, queues %v: %w", i+1, queues, err)
		}
	}
	say(ctx,
		"%d times bound to queues 3, 2 and 3, 2 in turn, and unbound: in device memory %d KiB were received, from it %d "+
			"KiB sent, in host memory %d KiB received between",
		a.Times, g.dut.device.n.Load()>>10, g.dut.out.n.Load()>>10, g.dut.host.n.Load()>>10)
	return nil, nil
}

func (g *guest) bind(ctx context.Context, _ *Args) (any, error) {
	err := g.dut.bind(ctx, 3)
	g.bound = err == nil
	return nil, err
}

func (g *guest) unbind(ctx context.Context, _ *Args) (any, error) {
	g.bound = false
	return nil, g.dut.unbind(ctx)
}

// in runs f in the network namespace of an interface.
func (g *guest) in(name string, f func() error) error {
	if name == peerName {
		return g.peer.do(f)
	}
	return f()
}

func (g *guest) flap(ctx context.Context, a *Args) (any, error) {
	for range a.Times {
		if err := g.in(a.Name, func() error { return flap(a.Name) }); err != nil {
			return nil, err
		}
		if _, err := g.traffic(ctx, &Args{}); err != nil {
			return nil, fmt.Errorf("after %s was down: %w", a.Name, err)
		}
	}
	return nil, nil
}

func poll(ctx context.Context, f func() (bool, error)) error {
	t := time.NewTicker(5 * time.Millisecond)
	defer t.Stop()
	for {
		if ok, err := f(); ok || err != nil {
			return err
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (g *guest) carrier(ctx context.Context, a *Args) (any, error) {
	return nil, poll(ctx, func() (up bool, err error) {
		err = g.in(a.Name, func() error { up, err = carrier(a.Name); return err })
		return up == a.Up, err
	})
}

func (g *guest) log(context.Context, *Args) (any, error) { return kernelLog() }

// lost waits for the log, because the driver may notice the loss late. It does not bring the interface up again:
// Linux 7.2's gve_open would dereference a NULL pointer if the interface came up again.
func (g *guest) lost(ctx context.Context, a *Args) (any, error) {
	before, err := kernelLog()
	if err != nil {
		return nil, err
	}
	go func() { _ = takeDown(underTestName) }() // may block
	var news []Record
	err = poll(ctx, func() (bool, error) {
		log, err := kernelLog()
		if err != nil {
			return false, err
		}
		news = log[len(before):]
		for i, r := range news {
			if strings.Contains(r.Text, a.Name) {
				news = news[:i+1]
				return true, nil
			}
		}
		return false, nil
	})
	if err != nil {
		return nil, fmt.Errorf("the log has no %q: %w: it has %v", a.Name, err, news)
	}
	return news, nil
}

// reload unloads the driver under traffic, and loads it again. No memory is bound for transmit when it unloads:
// Linux 7.2 uses the interface when the binding's socket is closed later (Oops in netdev_nl_sock_priv_destroy;
// seen).
func (g *guest) reload(ctx context.Context, a *Args) (any, error) {
	for i := range a.Times {
		bound := i%2 == 0
		unload := func() error {
			if err := unix.DeleteModule(module, unix.O_NONBLOCK); err != nil {
				return fmt.Errorf("unload %s: %w", module, err)
			}
			return nil
		}
		if err := g.away(ctx, bound, unload); err != nil {
			return nil, err
		}
		start := time.Now()
		if err := load(filepath.Join(agent.ModulesPath, module)); err != nil {
			return nil, fmt.Errorf("load %s: %w", module, err)
		}
		if err := g.links(); err != nil {
			return nil, err
		}
		say(ctx, "loaded in %v", time.Since(start).Round(time.Millisecond))
		if err := g.returned(ctx); err != nil {
			return nil, fmt.Errorf("after a reload: %w", err)
		}
	}
	return nil, nil
}

// away calls take, which removes the interface under test, with a queue bound or not.
func (g *guest) away(ctx context.Context, bound bool, take func() error) (err error) {
	if bound {
		if _, err = g.bind(ctx, nil); err == nil {
			_, err = g.traffic(ctx, &Args{})
		}
		if err == nil {
			err = g.dut.tx.Close()
		}
	} else {
		err = g.dut.close()
	}
	if err != nil {
		return err
	}
	start := time.Now()
	if err := take(); err != nil {
		return err
	}
	gone := time.Since(start)
	if bound { // the settings that Close would restore are gone with the interface
		if err := g.dut.close(); err != nil {
			say(ctx, "close of a device whose driver is gone: %v", err)
		}
	}
	g.bound, g.dut = false, nil
	say(ctx, "gone with bound=%t in %v", bound, gone.Round(time.Millisecond))
	return nil
}

// returned opens the device again, and checks that the streams go on and that a queue can be bound.
func (g *guest) returned(ctx context.Context) (err error) {
	if g.dut, err = openDevice(ctx, g); err != nil {
		return err
	}
	if _, err := g.traffic(ctx, &Args{}); err != nil {
		return err
	}
	_, err = g.cycles(ctx, &Args{Times: 1})
	return err
}

// load loads the module base.ko, or else base.ko.zst.
func load(base string) error {
	flags := 0
	f, err := os.Open(base + ".ko")
	if errors.Is(err, os.ErrNotExist) {
		flags = unix.MODULE_INIT_COMPRESSED_FILE
		f, err = os.Open(base + ".ko.zst")
	}
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.FinitModule(int(f.Fd()), "", flags)
}

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

// module is the driver's.
const module = "gve"

// Operations of the guest. While any of them runs, so do the streams.
const (
	OpSetup       = "lab.setup"       // links up, streams started
	OpTraffic     = "lab.traffic"     // Bytes more of each stream
	OpCycles      = "lab.cycles"      // bind and unbind, Times times
	OpBind        = "lab.bind"        // leave queue 3 bound
	OpUnbind      = "lab.unbind"      //
	OpFlap        = "lab.flap"        // Name down and up, Times times
	OpCarrier     = "lab.carrier"     // wait until Name's is Up
	OpReconfigure = "lab.reconfigure" // queues, rings, MTU, by ethtool and ip
	OpReload      = "lab.reload"      // unload and load the module, Times times
	OpRemove      = "lab.remove"      // eth0's device, by sysfs, while its queue 3 is bound if it is Up
	OpRescan      = "lab.rescan"      // of PCI, which brings it back
	OpLog         = "lab.log"         // the kernel's, a []Record
	OpBindZero    = "lab.bindzero"    // try to bind queue 0
	// use eth0, whose device is gone; a []Record of what comes of it, the last with Name in it
	OpLost = "lab.lost"
	// instead of OpSetup: connections that only send, and a queue bound and unbound, at least Times times
	OpOneWay  = "lab.oneway"
	OpSetters = "lab.setters" // all that ethtool and ip set of a gVNIC, and back; the NIC has timestamps
	OpStats   = "lab.stats"   // what ethtool -S says, a map of numbers by name
	OpReset   = "lab.reset"   // ethtool --reset all
)

// Args of all of them.
type Args struct {
	Times int    `json:"times,omitempty"`
	Bytes uint64 `json:"bytes,omitempty"`
	Name  string `json:"name,omitempty"`
	Up    bool   `json:"up,omitempty"`
}

// guest is what operations work on, one at a time.
type guest struct {
	mu     sync.Mutex
	peer   *namespace
	gpu    *kernel.UDMABuf
	duplex *duplex
	dut    *dut
	bound  bool
	opened uint16
}

// Main is the guest's program.
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
	// a host that is gone needs no news
	_ = agent.Progress(ctx, strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "; "))
}

// links brings up both interfaces, which a load of the module has made.
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

// flowing is enough to know that a stream flows, and patience how long that may take: a second at
// most between two attempts of TCP's, on a machine that may have much else to do.
const (
	flowing  = 128 << 10
	patience = 30 * time.Second
)

// traffic waits until each stream has gone on.
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

// cycles binds now these, now those queues, and has traffic before and after.
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

// poll calls f repeatedly, because there is no event to wait for.
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

// lost takes an interface down whose device is gone, as its driver may notice late, and waits for what
// the driver says in the end. Not up again: Linux 7.2's gve_open then trips over its
// own lost state (gve_tx_add_to_block, a NULL pointer).
func (g *guest) lost(ctx context.Context, a *Args) (any, error) {
	before, err := kernelLog()
	if err != nil {
		return nil, err
	}
	go func() { _ = takeDown(underTestName) }() // may take as long as it likes
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

// reload takes the driver away under traffic, and all NICs with it, and brings it back; ordinary
// connections live on. Every other time queues are bound for receive when it goes. Not for
// transmit: Linux 7.2 forgets to take the interface out of such a binding, and uses it when the
// binding's socket is closed later (Oops in netdev_nl_sock_priv_destroy; seen), with any NIC.
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

// away removes the interface under test during traffic, by calling take, while a queue is bound for
// receive or none is.
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
	if bound { // the interface is gone: what Close would set back is, too
		if err := g.dut.close(); err != nil {
			say(ctx, "close of a device whose driver is gone: %v", err)
		}
	}
	g.bound, g.dut = false, nil
	say(ctx, "gone with bound=%t in %v", bound, gone.Round(time.Millisecond))
	return nil
}

// returned checks that all streams go on over the interface after it has come back, and that queues
// can be bound.
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

// load loads a module of the image.
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

package lab

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/driver"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/wire"
)

// Port is a NIC of a lab, and its port on the switch.
type Port struct {
	Index        int // in the lab
	Name         string
	Model        Model
	MAC          wire.MAC
	Addr4, Addr6 netip.Prefix // that the guest should configure
	NICOptions                // with the MTUs' defaults (Description.Complete)
	QueuePairs   int          // of the device; gve's driver may use up to twice as many
	GPUs         []*GPUMemory // that it may address, the nearest first
	Place        string       // its name in the machine's tree; "": none
	Hotplug      bool         // the guest's QEMU can remove it

	lab *Lab
	dev device

	memory *dma.Space // guest memory by physical address, with an IOMMU; else nil

	machine *Machine
	desc    *NIC

	completions time.Duration // delay of transmit completions, at scale 1; under lab.changing
	driver      *driver.NIC   // of a guest in this process; nil: none; under lab.changing
	removed     atomic.Bool   // the removal of the NIC has been requested, and has not failed

	loadsMu sync.Mutex
	loads   map[loadsOf][]Load // under loadsMu

	life context.Context // all connections end with it
	end  context.CancelCauseFunc

	mu      sync.Mutex
	closed  bool // under mu: the port takes no new connections
	serving sync.WaitGroup

	turn sync.Mutex // held while a connection of Connected is served

	holders atomic.Pointer[HoldersFunc]
	mute    atomic.Int64 // until this time, in nanoseconds since the epoch, Holders does not call holders
}

// muteTime is how long Holders does not call its HoldersFunc after a call that failed because ctx ended, so that
// calls to a frozen guest do not pile up.
const muteTime = 10 * time.Second

// HoldersFunc returns the guest's connections that hold tokens of GPU memory.
type HoldersFunc func(ctx context.Context) ([]devmem.Holder, error)

// SetHolders sets the function that Holders calls.
func (p *Port) SetHolders(f HoldersFunc) { p.holders.Store(&f) }

// Holders returns which connections of the guest hold tokens, from the function of SetHolders. known is false
// without that function, if it fails, or if Holders does not call it: if it fails and ctx has ended, Holders does not
// call it for muteTime.
func (p *Port) Holders(ctx context.Context) (list []devmem.Holder, known bool) {
	f := p.holders.Load()
	if f == nil || time.Now().UnixNano() < p.mute.Load() {
		return nil, false
	}
	list, err := (*f)(ctx)
	if err != nil && ctx.Err() != nil {
		p.mute.Store(time.Now().Add(muteTime).UnixNano())
	}
	return list, err == nil
}

// newPort makes a port and attaches it to the switch. It returns the port with an error, too: the caller adds it to the
// lab, whose Close closes its device.
func (l *Lab) newPort(n *NIC, gpus []nic.GPU, reached []*GPUMemory, m *Machine, place string) (*Port, error) {
	model := m.desc.ModelOf(n)
	p := &Port{Index: len(l.ports), Name: n.Name, Model: model, MAC: n.MAC, Addr4: n.Addr4, Addr6: n.Addr6,
		NICOptions: n.NICOptions, QueuePairs: n.QueuePairs, GPUs: reached, Place: place, lab: l, machine: m, desc: n,
		loads: make(map[loadsOf][]Load)}
	p.life, p.end = context.WithCancelCause(context.Background())
	if m.IOMMU {
		p.memory = dma.NewSpace(p.Name+", physical", l.files)
	}
	var err error
	if p.dev, err = model.open(l.files, p.config(gpus), m.desc, n); err != nil {
		p.dev = nil // open may return an interface that holds a nil pointer
		return p, err
	}
	if p.memory == nil {
		p.Space().SetNodes(p.nodes()) // with an IOMMU an address does not show its node
	}
	p.Space().SetSharing(l.opt.Sharing)
	if l.opt.FrontendMemory > 0 {
		p.Space().CountMemory()
	}
	link := n.Link
	link.Up = scaled(link.Up, l.clock.Scale())
	who := wire.Identity{}
	if link.Identity != nil {
		who = *link.Identity
	}
	who.MAC, who.Refused = p.MAC, p.refused
	link.Identity, link.Storm = &who, cmp.Or(link.Storm, l.opt.Storm)
	return p, p.NIC().Attach(l.sw, link)
}

func (p *Port) config(gpus []nic.GPU) nic.Config {
	return nic.Config{Name: p.Name, MAC: p.MAC, MTU: uint16(p.MaxMTU), QueuePairs: p.QueuePairs, GPUs: gpus,
		Pollers: p.lab.pollers, Memory: p.memory, Shape: p.shape(), Hold: time.Duration(p.RSCUsecs) * time.Microsecond,
		Flows: p.lab.opt.Flows, Sabotage: p.desc.Sabotage, Log: p.lab.opt.Log}
}

// Reserve reserves IP addresses on the switch for this port (wire.Link.Reserve).
func (p *Port) Reserve(addrs ...netip.Addr) { p.NIC().Link().Reserve(p.MAC, addrs...) }

// Rate returns the rate of the NIC's wire, in bytes a second at scale 1; 0: unknown.
func (p *Port) Rate() float64 { return p.desc.Rate }

// NIC returns the part that is common to all device models.
func (p *Port) NIC() *nic.Port { return p.dev.Port() }

// Device returns the model's device: a *virtio.Device, or a value that embeds a *gve.Device.
func (p *Port) Device() any { return p.dev }

// Space returns the NIC's address space for DMA.
func (p *Port) Space() *dma.Space { return p.dev.Space() }

// GPU returns the first of GPUs; nil: none.
func (p *Port) GPU() *GPUMemory {
	if len(p.GPUs) == 0 {
		return nil
	}
	return p.GPUs[0]
}

// Serve serves the NIC's protocol on conn until the peer hangs up (then it returns nil), ctx or the lab ends, the NIC
// is removed, or there is an error. It closes conn. Only one Serve may run at a time.
func (p *Port) Serve(ctx context.Context, conn *net.UnixConn) error {
	if !p.enter() {
		return errors.Join(ErrClosed, conn.Close())
	}
	defer p.serving.Done()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(p.life, func() { cancel(ErrClosed) })()
	defer p.boundMemory(ctx, cancel)()
	err := p.serve(ctx, conn)
	if cause := context.Cause(ctx); errors.Is(cause, ErrMemory) {
		err = cause
	}
	return err
}

// Unaccepted returns the result of vhostuser.Backend.Unaccepted: the features that the last frontend was offered and
// hung up without accepting, or "". With gve it returns "".
func (p *Port) Unaccepted() string {
	if d, ok := p.dev.(interface{ Unaccepted() string }); ok {
		return d.Unaccepted()
	}
	return ""
}

// serve serves a connection; then the switch forgets the addresses that the guest used (wire.Link.Forget).
func (p *Port) serve(ctx context.Context, conn *net.UnixConn) error {
	defer p.NIC().Link().Forget()
	return p.dev.Serve(ctx, conn)
}

// Connected serves conn in a goroutine that first waits until the earlier connection of Connected has ended. The
// goroutine logs an error, unless it comes from closing the lab or removing the NIC. If the port takes no new
// connections, Connected closes conn.
func (p *Port) Connected(conn *net.UnixConn) {
	if !p.enter() {
		_ = conn.Close()
		return
	}
	dma.Go(func() {
		defer p.serving.Done()
		p.turn.Lock()
		defer p.turn.Unlock()
		if err := p.serve(p.life, conn); err != nil && p.life.Err() == nil {
			p.lab.opt.Log.Error("connection to QEMU", "port", p.Name, "err", err)
		}
	})
}

// enter registers a connection; false: it does not, because the port takes no new connections.
func (p *Port) enter() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.serving.Add(1)
	}
	return !p.closed
}

// endServing refuses new connections and waits until none is served. It ends connections that do not end by themselves
// within Options.Farewell, or within limits.GuestEnd if Farewell is the base of that limit.
func (p *Port) endServing() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		p.serving.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(limits.GuestEnd.Unless(p.lab.opt.Farewell)):
	}
	p.end(ErrClosed)
	<-ended
}

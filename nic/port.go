package nic

import (
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"vnic.dev/vnic/control"
	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/gpumem"
	"vnic.dev/vnic/splitter"
	"vnic.dev/vnic/wire"
)

// Bounds of what a port holds.
const (
	MaxQueuePairs = 128
	maxRules      = 1024
	maxBuffers    = 64
	maxBindings   = 64
	maxMeters     = 16
	maxJobs       = 16
)

// Config says what a port is. The personality sets QueuePairs, HeaderLimit and UnsplitQueue to what it can do.
type Config struct {
	Name         string
	MAC          wire.MAC
	MTU          uint16
	QueuePairs   int
	HeaderLimit  uint32 // longest header that is split, in bytes
	UnsplitQueue int    // receive queue for frames on a split queue that cannot be split; -1: their own
	GPUs         []GPU
	Log          *slog.Logger // never nil
}

// GPU is a GPU that a port may use.
type GPU struct {
	*gpumem.GPU
	Info control.GPUInfo // how the guest sees it; ID, Size and P2P are set by the port
	Path gpumem.Path     // from this NIC
}

// Port is a NIC on the wire: a wire.Port, and the control.Handler of its guest's commands.
type Port struct {
	conf   Config
	space  *dma.Space
	limits func() wire.Limits
	queues []*rxQueue

	link       *wire.Link   // set by Attach, before traffic
	sw         *wire.Switch // likewise
	dispatcher *control.Dispatcher
	registry   *gpumem.Registry
	engine     *gpumem.Engine

	steering    atomic.Pointer[steering]
	rules       *splitter.Rules
	meters      atomic.Pointer[[]*meter]
	p2p         atomic.Uint32 // bit g: peer to peer with GPU g
	mtu         atomic.Uint32
	generation  atomic.Uint32
	notify      notifier
	lostReplies atomic.Uint64 // answers and notices of the control channel that found no buffer on receive queue 0

	mu           sync.Mutex // guards what follows; taken on no fast path
	transmitters []*Transmitter
	state        control.State
	resumed      bool // rings went on from an earlier life whose state is lost: see Resumed

}

var (
	_ wire.Port       = (*Port)(nil)
	_ control.Handler = (*Port)(nil)
)

// NewPort makes the port of a personality that owns space and queues; limits is asked for what the driver takes.
func NewPort(c Config, space *dma.Space, queues []RxQueue, limits func() wire.Limits) (*Port, error) {
	if n := len(queues); n < 1 || n > MaxQueuePairs || n != c.QueuePairs {
		return nil, fmt.Errorf("port %s: %d queue pairs, not 1 to %d", c.Name, c.QueuePairs, MaxQueuePairs)
	}
	if c.MTU < 68 || uint32(c.MTU) > 65535-splitter.EthLen {
		return nil, fmt.Errorf("port %s: MTU %d, not 68 to %d", c.Name, c.MTU, 65535-splitter.EthLen)
	}
	p := &Port{conf: c, space: space, limits: limits, rules: splitter.NewRules(maxRules)}
	p.mtu.Store(uint32(c.MTU))
	gpus := make([]*gpumem.GPU, len(c.GPUs))
	for i, g := range c.GPUs {
		gpus[i] = g.GPU
		if g.Path.P2P() {
			p.p2p.Store(p.p2p.Load() | 1<<uint(g.ID()))
		}
	}
	p.registry = gpumem.NewRegistry(gpus, maxBuffers)
	p.engine = gpumem.NewEngine(p.registry, space, gpumem.EngineOptions{MaxJobs: maxJobs, Done: p.jobDone})
	p.dispatcher = control.NewDispatcher(p)
	for _, q := range queues {
		rq := &rxQueue{q: q}
		rq.mover.port = p
		p.queues = append(p.queues, rq)
	}
	p.notify.init()
	p.clear()
	return p, nil
}

// Attach puts the port on a switch. It is called once, before the guest's traffic begins.
func (p *Port) Attach(sw *wire.Switch, o wire.LinkOptions) error {
	link, err := sw.Attach(p, o)
	if err != nil {
		return err
	}
	p.sw, p.link = sw, link
	return nil
}

// Close takes the port off the wire and ends its jobs. Its queues are stopped.
func (p *Port) Close() {
	if p.link != nil {
		_ = p.sw.Detach(p.link)
	}
	p.engine.Reset()
	p.registry.CloseAll()
}

// Reset is device reset: everything that commands have set up is gone, and jobs have ended when it returns. Transmit
// queues are stopped.
func (p *Port) Reset() {
	p.engine.Reset()
	p.registry.CloseAll()
	p.dispatcher.Reset()
	p.clear()
}

// clear gives the port the state of a device just reset.
func (p *Port) clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.state.Rules {
		_ = p.rules.Del(r.ID)
	}
	p.state = control.State{Generation: p.generation.Add(1)}
	for i := range p.queues {
		p.state.Splits = append(p.state.Splits, control.Split{Queue: uint16(i)})
	}
	p.state.RSS = control.RSS{HashTypes: hashTypes, Key: splitter.DefaultKey, Table: []uint16{0}}
	p.resumed = false
	p.meters.Store(&[]*meter{})
	p.steer0()
}

// steer0 makes the steering that the state asks for; the caller holds mu.
func (p *Port) steer0() {
	s := &steering{limit: p.conf.HeaderLimit, unsp: p.conf.UnsplitQueue}
	rss, err := splitter.NewRSS(p.state.RSS.Key, p.state.RSS.Table)
	if err != nil || p.resumed {
		rss, _ = splitter.NewRSS(p.state.RSS.Key, []uint16{0})
	}
	s.rss = rss
	for _, sp := range p.state.Splits {
		s.splits = append(s.splits, splitPolicy{on: sp.On && !p.resumed, threshold: sp.Threshold})
	}
	p.steering.Store(s)
}

// Resumed says that a ring goes on where an earlier backend, whose state is lost, left it. If this port has no state
// either, the driver may have split queues that we know nothing of: everything goes to receive queue 0 until the driver
// has read the generation (Hello), and so knows.
func (p *Port) Resumed() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state.LastID == 0 && !p.resumed {
		p.resumed = true
		p.steer0()
	}
}

// Name implements wire.Port.
func (p *Port) Name() string { return p.conf.Name }

// Limits implements wire.Port.
func (p *Port) Limits() wire.Limits { return p.limits() }

// SetMTU sets the MTU that the guest is told.
func (p *Port) SetMTU(mtu uint16) { p.mtu.Store(uint32(mtu)) }

// Space is the guest's address space.
func (p *Port) Space() *dma.Space { return p.space }

// Link is the port's way into the switch.
func (p *Port) Link() *wire.Link { return p.link }

// LostReplies counts answers and notices of the control channel that found no buffer on receive queue 0.
func (p *Port) LostReplies() uint64 { return p.lostReplies.Load() }

// QueueCounters reads the counters of receive and transmit queue pair i.
func (p *Port) QueueCounters(i int) (rx, tx control.DirCounters) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i < len(p.queues) {
		rx = p.queues[i].in.Read()
	}
	if i < len(p.transmitters) {
		tx = p.transmitters[i].out.Read()
	}
	return rx, tx
}

package nic

import (
	"cmp"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/gpumem"
	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/lab/pcie"
	"vnic.dev/vnic/internal/lab/shape"
	"vnic.dev/vnic/internal/nic/flows"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/splitter"
)

// Bounds of what a port holds.
const (
	MaxQueuePairs   = 128
	MaxRules        = 1024 // flow rules
	maxBuffers      = 64
	maxBindings     = 64
	maxFlowCounters = 16
	maxJobs         = 16
)

// Config says what a port is. The device model sets QueuePairs, and from HeaderLimit to Hash, to
// what it can do.
type Config struct {
	Name         string
	MAC          wire.MAC
	MTU          uint16
	QueuePairs   int
	HeaderLimit  uint32 // longest header that is split, in bytes
	MaxRSS       int    // entries of the largest RSS table; 0: control.MaxRSSTable
	UnsplitQueue int    // receive queue for frames on a split queue that cannot be split; -1: their own
	QueueSplits  bool   // a queue's driver says whether it is split, as it starts it (SplitQueue): no command does
	Hash         bool   // receive queues want each IP frame's hash
	GPUs         []GPU
	Memory       *dma.Space // by physical address, where an IOMMU translates what the NIC uses; nil: it does not
	Shape        *Shape     // nil: nothing slows it down
	// Hold is for how long a merge of frames may stay open when its batch has ended (receive coalescing), at most MaxHold;
	// 0: it ends with the batch.
	Hold     time.Duration
	Clock    func() int64 // that Hold goes by: nanoseconds, above 0; nil: shape.Now. Tests turn it by hand
	Flows    int          // rows of the account of flows (FlowAccount), at most flows.MaxRows; 0: none is kept
	Pollers  *Pollers     // that serve its transmit queues, if the model's rings can be polled; nil: a thread each
	Sabotage *Sabotage    // nil: no fault is made on purpose
	Log      *slog.Logger // nil: none
}

// GPU is a GPU that a port may use.
type GPU struct {
	*gpumem.GPU
	Info control.GPUInfo // how the guest sees it; ID, Size and P2P are set by the port
	Path pcie.Path       // from this NIC
}

// Port is a NIC on the wire: a wire.Port, and the control.Handler of its guest's commands.
type Port struct {
	// What each run of packets looks at, in one cache line: with many ports none of it is at hand.
	space    *dma.Space
	steering atomic.Pointer[steering]     // of the State; stored under mu
	limits   *atomic.Pointer[wire.Limits] // what the driver takes
	queues   []*rxQueue
	link     atomic.Pointer[wire.Link] // nil until Attach
	trouble  atomic.Uint32             // noCarrier and so on; 0: nothing
	separate atomic.Bool               // no frames are merged: SetCoalescing
	flows    *flows.Table              // nil: none
	hold     *holder                   // nil: merges end with their batch

	conf   Config
	memory *dma.Space   // guest memory as commands name it: by physical address
	sw     *wire.Switch // set by Attach

	dispatcher *control.Dispatcher
	registry   *gpumem.Registry
	engine     *gpumem.Engine

	p2p          atomic.Uint64 // bit g: peer to peer with GPU g
	mtu          atomic.Uint32
	generation   atomic.Uint32
	notify       notifier
	backlog      replyBacklog
	faults       faults
	rdma         roce
	deviceQueues queueSet                 // that have had buffers in GPU memory
	deviceNow    queueSet                 // that have them by NoteDeviceQueue
	observer     atomic.Pointer[Observer] // nil: nobody
	lostReplies  atomic.Uint64            // answers and notices of the control channel that receive queue 0 did not take

	splitMu sync.Mutex // held by SetSplit; before mu

	mu           sync.Mutex // guards what follows; taken on no fast path
	transmitters []*Transmitter
	known        bool     // the driver has read this generation
	inUse        []uint16 // receive queues: SetDefaultRSS
	rssSet       bool     // RSS's table is another than the default
}

var (
	_ wire.PlacementReporter = (*Port)(nil)
	_ control.Handler        = (*Port)(nil)
	_ TxQueue                = (*roce)(nil)
)

// NewPort makes the port of a device model that owns space and queues; limits is what the
// driver takes now.
func NewPort(c Config, space *dma.Space, queues []RxQueue, limits *atomic.Pointer[wire.Limits]) (*Port, error) {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.MaxRSS == 0 {
		c.MaxRSS = control.MaxRSSTable
	}
	if n := len(queues); n < 1 || n > MaxQueuePairs || n != c.QueuePairs {
		return nil, fmt.Errorf("port %s: %d queue pairs, not 1 to %d", c.Name, c.QueuePairs, MaxQueuePairs)
	}
	if c.MTU < 68 || uint32(c.MTU) > 65535-splitter.EthLen {
		return nil, fmt.Errorf("port %s: MTU %d, not 68 to %d", c.Name, c.MTU, 65535-splitter.EthLen)
	}
	if c.Hold < 0 || c.Hold > MaxHold {
		return nil, fmt.Errorf("port %s: merges that stay open for %v, not 0 to %v", c.Name, c.Hold, MaxHold)
	}
	p := &Port{conf: c, space: space, limits: limits, memory: cmp.Or(c.Memory, space)}
	p.mtu.Store(uint32(c.MTU))
	gpus := make([]*gpumem.GPU, len(c.GPUs))
	for i, g := range c.GPUs {
		gpus[i] = g.GPU
	}
	p.SetP2P(true)
	p.registry = gpumem.NewRegistry(gpus, maxBuffers)
	engine := gpumem.EngineOptions{MaxJobs: maxJobs, Done: p.jobDone}
	if s := c.Shape; s != nil {
		engine.ToGuest = func(gpu, node int) *shape.Route { return s.ToHost[gpu].of(node) }
		engine.FromGuest = func(gpu, node int) *shape.Route { return s.FromHost[gpu].of(node) }
	}
	p.engine = gpumem.NewEngine(p.registry, p.memory, engine)
	p.dispatcher = control.NewDispatcher(p)
	if c.Flows > 0 {
		p.flows = flows.New(c.Flows, 2*len(queues))
	}
	for i, q := range queues {
		rq := &rxQueue{q: c.Sabotage.rx(q), wait: q}
		rq.mover.port, rq.exhaustion.port = p, p
		rq.delta.to = &rq.traffic
		if p.flows != nil {
			rq.flows = p.flows.Shard(i)
		}
		p.queues = append(p.queues, rq)
	}
	p.notify.copier, p.notify.frame = dma.NewCopier(), make([]byte, control.MaxFrame)
	p.rdma.port = p
	p.backlog.port, p.backlog.copier = p, dma.NewCopier()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
	if c.Hold > 0 {
		p.hold = newHolder(p, c.Hold)
	}
	return p, nil
}

// Attach puts the port on a switch, once. What the guest sends before is dropped.
func (p *Port) Attach(sw *wire.Switch, o wire.LinkOptions) error {
	link, err := sw.Attach(p, o)
	if err != nil {
		return err
	}
	p.sw = sw
	p.link.Store(link)
	return nil
}

// Close takes the port off the wire and ends its jobs. Its queues are stopped.
func (p *Port) Close() {
	if link := p.link.Load(); link != nil {
		_ = p.sw.Detach(link) // ErrDetached: the switch was closed before
	}
	p.endFaults()
	if p.hold != nil {
		p.hold.close()
		p.flushHeld()
	}
	p.rdma.close()
	p.engine.Reset()
	p.backlog.close()
	p.registry.CloseAll()
}

// Reset is device reset: everything that commands have set up is gone, and jobs have ended when it
// returns.
func (p *Port) Reset() {
	p.rdma.reset()
	p.engine.Reset() // not under mu: jobs that end put frames into receive queue 0
	p.mu.Lock()
	p.reset()
	p.mu.Unlock()
	p.Restarted()
}

// Restarted tells the other ports of the switch that this one's guest begins anew: its connections are gone. Reset and
// DriverChanged do so; a device model does when it has nobody behind it any more.
func (p *Port) Restarted() {
	if link := p.link.Load(); link != nil {
		link.Restarted()
	}
}

// DriverChanged says that another driver took over without a device reset: its guest replaced one that has
// gone. What commands set up was the previous driver's, and is dropped.
func (p *Port) DriverChanged() {
	p.mu.Lock()
	s := p.state()
	untouched := !p.known && s.LastID == 0 && len(s.Buffers) == 0 && p.rdma.engine.Load() == nil &&
		!slices.ContainsFunc(s.Splits, func(s control.Split) bool { return s.On })
	p.mu.Unlock()
	if !untouched {
		p.Reset()
		return
	}
	p.Restarted()
}

func (p *Port) reset() {
	p.registry.CloseAll()
	p.clear()
	p.dispatcher.Reset()
	p.backlog.clear()
}

// clear gives the port the state of a device just reset. The caller holds mu.
func (p *Port) clear() {
	generation := p.generation.Add(1)
	info := p.info()
	s := control.NewState(generation, &info, splitter.DefaultKey)
	p.known, p.rssSet, p.inUse = false, false, nil
	s.RSS.Table = p.defaultRSS()
	now, _ := p.compile(s, new(steering)) // no rules, and a table of one queue: there is no error
	if old := p.steering.Swap(now); old != nil {
		p.changed(old.state, s)
	}
}

// state is what commands have set up, not to be changed.
func (p *Port) state() *control.State { return p.steering.Load().state }

// Name implements wire.Port.
func (p *Port) Name() string { return p.conf.Name }

// Limits implements wire.Port.
func (p *Port) Limits() wire.Limits { return *p.limits.Load() }

// SetCarrier says whether the link is up, as it is at first. While it is down the port takes
// nothing from the wire, and what its guest sends is dropped. Telling the guest is the
// device model's.
func (p *Port) SetCarrier(up bool) { p.set(noCarrier, !up) }

// SetP2P says whether the NIC reaches GPUs as its Path to them says, as it does at first, or none of them: then payload
// goes through host memory. Packets that are under way may still go the way before.
func (p *Port) SetP2P(on bool) {
	mask := uint64(0)
	for _, g := range p.conf.GPUs {
		if on && g.Path.P2P() {
			mask |= 1 << uint(g.ID())
		}
	}
	p.p2p.Store(mask)
}

// SetMTU sets the MTU that the guest is told.
func (p *Port) SetMTU(mtu uint16) { p.mtu.Store(uint32(mtu)) }

// Space is the guest's address space.
func (p *Port) Space() *dma.Space { return p.space }

// Link is the port's way into the switch, nil before Attach.
func (p *Port) Link() *wire.Link { return p.link.Load() }

// LostReplies counts answers and notices of the control channel that did not get into receive queue
// 0.
func (p *Port) LostReplies() uint64 { return p.lostReplies.Load() }

// QueuePairs is how many queue pairs the port has; its driver may use fewer.
func (p *Port) QueuePairs() int { return p.conf.QueuePairs }

// settle waits until what the transmit queues have brought to others is counted.
func (p *Port) settle() {
	p.mu.Lock()
	all := p.transmitters // to which others are only added
	p.mu.Unlock()
	for _, t := range all {
		t.settle()
	}
}

// QueueCounters reads the counters of receive and transmit queue pair i.
func (p *Port) QueueCounters(i int) (rx, tx control.DirCounters) {
	p.settle()
	p.mu.Lock()
	defer p.mu.Unlock()
	if i < len(p.queues) {
		rx = p.queues[i].counters()
	}
	if i < len(p.transmitters) {
		tx = p.transmitters[i].out.Read()
	}
	return rx, tx
}

// QueueTraffic reads whose memory payload of receive and transmit queue pair i was in.
func (p *Port) QueueTraffic(i int) (rx, tx Traffic) {
	p.settle()
	p.mu.Lock()
	defer p.mu.Unlock()
	if i < len(p.queues) {
		rx = p.queues[i].traffic.read()
	}
	if i < len(p.transmitters) {
		tx = p.transmitters[i].traffic.read()
	}
	return rx, tx
}

// Reduced is how many bytes of sums the port's engines have made.
func (p *Port) Reduced() uint64 { return p.engine.Reduced() }

// Copied is how many bytes of a GPU the port's engines brought to guest memory of a NUMA node, and from there; -1: of
// those of which it is not known.
func (p *Port) Copied(gpu, node int) (toGuest, fromGuest uint64) { return p.engine.Copied(gpu, node) }

// SetCoalescing says whether frames of one flow that come together may go to the guest as one GSO
// packet, as they do at first where its driver takes such packets.
func (p *Port) SetCoalescing(on bool) {
	p.separate.Store(!on)
	if !on {
		p.flushHeld()
	}
}

// Coalesced counts the frames that came to the guest as part of a GSO packet that was made of
// several, and those packets.
func (p *Port) Coalesced() (frames, packets uint64) {
	for _, q := range p.queues {
		frames += q.merged.v.Load()
		packets += q.merges.v.Load()
	}
	return frames, packets
}

// Unsplit counts the frames that should have been split and could not be, on all queues.
func (p *Port) Unsplit() (n uint64) {
	for _, q := range p.queues {
		n += q.unsplit.v.Load()
	}
	return n
}

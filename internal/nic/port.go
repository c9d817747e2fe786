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

// Bounds of a port's tables.
const (
	MaxQueuePairs   = 128
	MaxRules        = 1024 // flow rules
	maxBuffers      = 64
	maxBindings     = 64
	maxFlowCounters = 16
	maxJobs         = 16
)

// Config describes a port.
type Config struct {
	Name         string
	MAC          wire.MAC
	MTU          uint16
	QueuePairs   int
	HeaderLimit  uint32 // most bytes of a frame for a header buffer: TCP headers, or a whole frame of another kind
	MaxRSS       int    // entries of the largest RSS table; 0: control.MaxRSSTable
	UnsplitQueue int    // for unsplittable frames of a split queue; -1: the split queue itself
	QueueSplits  bool   // the driver sets header split when it starts a queue; commands to split or bind are refused
	Hash         bool   // receive queues need the RSS hash
	GPUs         []GPU
	Memory       *dma.Space // physical address space, if an IOMMU translates the NIC's addresses; else nil
	Shape        *Shape     // nil: unlimited
	// Hold is how long a merge (frames of a flow that become one GSO packet) may wait for more frames after its first
	// batch, at most MaxHold. 0: a merge ends with its batch.
	Hold     time.Duration
	Clock    func() int64 // Hold's clock, in nanoseconds above 0; nil: shape.Now
	Flows    int          // rows in the account of flows, as for flows.New; 0: no account
	Pollers  *Pollers     // threads that poll the transmit rings (virtio only); nil: a worker for each queue
	Sabotage *Sabotage    // nil: no deliberate fault
	Log      *slog.Logger
}

// GPU is a GPU that a port may use.
type GPU struct {
	*gpumem.GPU
	Info control.GPUInfo // as the guest sees it; the port sets ID, Size and P2P
	Path pcie.Path
}

// Port is a NIC on the wire: it implements wire.Port, and control.Handler for its guest's commands.
type Port struct {
	// Deliver reads most of the fields from here to hold for each batch: they lie together, in few cache lines.
	space    *dma.Space
	steering atomic.Pointer[steering] // stored under mu
	limits   *atomic.Pointer[wire.Limits]
	queues   []*rxQueue
	link     atomic.Pointer[wire.Link]
	trouble  atomic.Uint32 // bits such as noCarrier
	separate atomic.Bool
	flows    *flows.Table
	hold     *holder // nil: Config.Hold is 0

	conf   Config
	memory *dma.Space // guest memory by physical address: Config.Memory, or else space
	sw     *wire.Switch

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
	deviceQueues queueSet
	deviceNow    queueSet // receive queues for which the last call of NoteDeviceQueue had on set
	observer     atomic.Pointer[Observer]
	lostReplies  atomic.Uint64

	splitMu sync.Mutex // taken before mu

	mu           sync.Mutex // guards the fields below
	transmitters []*Transmitter
	known        bool // the driver has asked for Info in this generation
	inUse        []uint16
	rssSet       bool // the last SetRSS of this generation set another table than the default
}

var (
	_ wire.PlacementReporter = (*Port)(nil)
	_ control.Handler        = (*Port)(nil)
	_ TxQueue                = (*roce)(nil)
)

// NewPort makes the port of a device model. The model stores in limits what its driver accepts, and may store new
// Limits at any time.
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
		engine.ToGuest = func(gpu, node int) *shape.Route { return s.ToHost[gpu].route(node) }
		engine.FromGuest = func(gpu, node int) *shape.Route { return s.FromHost[gpu].route(node) }
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

// Attach connects the port to a switch. It may be called once.
func (p *Port) Attach(sw *wire.Switch, o wire.LinkOptions) error {
	link, err := sw.Attach(p, o)
	if err != nil {
		return err
	}
	p.sw = sw
	p.link.Store(link)
	return nil
}

// Close detaches the port and ends its jobs. The port's queues must be stopped.
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

// Reset carries out a device reset: it clears the State, ends jobs, deletes RDMA objects, and calls Restarted.
func (p *Port) Reset() {
	p.rdma.reset()
	p.engine.Reset() // not under mu: jobs that end put notices into receive queue 0
	p.mu.Lock()
	p.registry.CloseAll()
	p.clear()
	p.dispatcher.Reset()
	p.backlog.clear()
	p.mu.Unlock()
	p.Restarted()
}

// Restarted calls wire.Link.Restarted, if the port is attached: its guest has lost its connections.
func (p *Port) Restarted() {
	if link := p.link.Load(); link != nil {
		link.Restarted()
	}
}

// DriverChanged is called when another driver has taken over without a device reset. If the previous driver has asked
// for Info, made a buffer, rule, binding or flow counter, or turned header split on, or if there is an RDMA Engine,
// DriverChanged calls Reset, else only Restarted.
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

// clear sets the state after device reset. The caller holds mu.
func (p *Port) clear() {
	generation := p.generation.Add(1)
	info := p.info()
	s := control.NewState(generation, &info, splitter.DefaultKey)
	p.known, p.rssSet, p.inUse = false, false, nil
	s.RSS.Table = p.defaultRSS()
	now, _ := p.compile(s, new(steering))
	if old := p.steering.Swap(now); old != nil {
		p.changed(old.state, s)
	}
}

// state returns the State, which must not be changed.
func (p *Port) state() *control.State { return p.steering.Load().state }

// Name implements wire.Port.
func (p *Port) Name() string { return p.conf.Name }

// Limits implements wire.Port.
func (p *Port) Limits() wire.Limits { return *p.limits.Load() }

// SetCarrier sets whether the link is up (the default). While the link is down, the port takes no packets from
// the wire and sends none.
func (p *Port) SetCarrier(up bool) { p.set(noCarrier, !up) }

// SetP2P turns peer to peer on (the default) for the GPUs whose Path allows it, or off for all. Payload from and to
// the memory of a GPU without it goes through host memory. Packets in progress may still take the old path.
func (p *Port) SetP2P(on bool) {
	mask := uint64(0)
	for _, g := range p.conf.GPUs {
		if on && g.Path.P2P() {
			mask |= 1 << uint(g.ID())
		}
	}
	p.p2p.Store(mask)
}

// SetMTU sets the MTU that the control channel reports to the guest, and that bounds the path MTU of RDMA connections
// made from now on.
func (p *Port) SetMTU(mtu uint16) { p.mtu.Store(uint32(mtu)) }

// Space returns the NIC's address space for DMA.
func (p *Port) Space() *dma.Space { return p.space }

// Link returns the port's link to the switch; nil before Attach.
func (p *Port) Link() *wire.Link { return p.link.Load() }

// LostReplies returns how many answers to commands, and notices to the driver, were dropped: receive queue 0 refused
// them, or had no buffer while the backlog took no more.
func (p *Port) LostReplies() uint64 { return p.lostReplies.Load() }

// QueuePairs returns the port's number of queue pairs.
func (p *Port) QueuePairs() int { return p.conf.QueuePairs }

// settle waits until transmit queues have counted the packets that they have delivered.
func (p *Port) settle() {
	p.mu.Lock()
	all := p.transmitters
	p.mu.Unlock()
	for _, t := range all {
		t.settle()
	}
}

// QueueCounters reads the counters of queue pair i; 0 for a queue that does not exist.
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

// QueueTraffic reads the Traffic of queue pair i; 0 for a queue that does not exist.
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

// Reduced returns how many bytes the engine has added in Reduce jobs.
func (p *Port) Reduced() uint64 { return p.engine.Reduced() }

// Copied returns how many bytes the engine has copied between a GPU and guest memory on a NUMA node. With node -1 it
// counts memory whose node is unknown.
func (p *Port) Copied(gpu, node int) (toGuest, fromGuest uint64) { return p.engine.Copied(gpu, node) }

// SetCoalescing sets whether frames of one flow may reach the guest as one GSO packet. The default is true.
func (p *Port) SetCoalescing(on bool) {
	p.separate.Store(!on)
	if !on {
		p.flushHeld()
	}
}

// Coalesced returns how many frames reached the guest in merged GSO packets, and how many such packets.
func (p *Port) Coalesced() (frames, packets uint64) {
	for _, q := range p.queues {
		frames += q.merged.v.Load()
		packets += q.merges.v.Load()
	}
	return frames, packets
}

// Unsplit returns how many frames of queues with header split could not be split (Frame.Unsplit), dropped ones
// included.
func (p *Port) Unsplit() (n uint64) {
	for _, q := range p.queues {
		n += q.unsplit.v.Load()
	}
	return n
}

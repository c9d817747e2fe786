package nic

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"vnic.dev/vnic/control"
	"vnic.dev/vnic/gpumem"
	"vnic.dev/vnic/splitter"
)

// The rules of the commands, and their errnos, are control.State's; here is what follows from them. Commands run on the
// transmit workers of the port's guest, one at a time.

// Generation implements control.Handler.
func (p *Port) Generation() uint32 { return p.generation.Load() }

// Info implements control.Handler. The driver that asks knows the generation from now on.
func (p *Port) Info() (control.Info, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.known = true
	if !p.asked && len(p.state.RSS.Table) > 1 { // it was for a driver that asks for nothing
		p.state.RSS.Table = []uint16{0}
		p.steerAnew()
	}
	return p.info(), nil
}

func (p *Port) info() control.Info {
	i := control.Info{Generation: p.generation.Load(), MAC: p.conf.MAC, MTU: uint16(p.mtu.Load()),
		QueuePairs: uint16(len(p.queues)), HeaderLimit: uint16(p.conf.HeaderLimit), MaxRSS: uint16(p.conf.MaxRSS),
		MaxRules: MaxRules, MaxBuffers: maxBuffers, MaxBindings: maxBindings, MaxMeters: maxMeters, MaxJobs: maxJobs,
		GPUs: uint16(len(p.conf.GPUs))}
	if p.p2p.Load() != 0 {
		i.Flags |= control.InfoP2P
	}
	return i
}

// SetSplit implements control.Handler. Queue 0 is never split: it carries what cannot be, and the answers to commands.
// Where split goes off, what is posted comes back unused.
func (p *Port) SetSplit(s control.Split) error {
	if p.conf.QueueSplits {
		return fmt.Errorf("split of queue %d: it goes with the queue's ring, which is the driver's to set up: %w", s.Queue, syscall.EOPNOTSUPP)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	was, _ := p.state.Split(s.Queue)
	if err := p.state.SetSplit(s); err != nil {
		return err
	}
	if was.On && !s.On {
		p.giveBack(s.Queue) // before steering changes: no whole frame may find a chain that is laid out for split ones
	}
	p.steerAnew()
	return nil
}

// SplitQueue says that a queue is to be started with header split on or off, for personalities with Config.QueueSplits. The
// queue is stopped meanwhile. Any may be split, 0 too.
func (p *Port) SplitQueue(queue int, on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state.Splits[queue] = control.Split{Queue: uint16(queue), On: on}
	p.steerAnew()
}

// Split implements control.Handler.
func (p *Port) Split(queue uint16) (control.Split, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state.Split(queue)
}

// AddFlow implements control.Handler.
func (p *Port) AddFlow(r control.FlowRule) (uint32, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	id, err := p.state.AddFlow(r, MaxRules)
	if err != nil {
		return 0, err
	}
	rule := splitter.Rule{ID: id, Queue: r.Queue, Fields: splitter.FieldProto}
	rule.Flow.Proto, rule.Flow.IPv6 = r.Proto, r.IPv6
	if r.Src.IsValid() {
		rule.Fields |= splitter.FieldSrc
		copy(rule.Flow.Src[:], r.Src.AsSlice())
	}
	if r.Dst.IsValid() {
		rule.Fields |= splitter.FieldDst
		copy(rule.Flow.Dst[:], r.Dst.AsSlice())
	}
	if r.SrcPort != 0 {
		rule.Fields |= splitter.FieldSrcPort
		rule.Flow.SrcPort = r.SrcPort
	}
	if r.DstPort != 0 {
		rule.Fields |= splitter.FieldDstPort
		rule.Flow.DstPort = r.DstPort
	}
	if err := p.rules.Add(rule); err != nil { // the State would have to have refused it
		return 0, errors.Join(fmt.Errorf("flow rule: %w: %w", err, syscall.EINVAL), p.state.DelFlow(id))
	}
	return id, nil
}

// DelFlow implements control.Handler.
func (p *Port) DelFlow(id uint32) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.state.DelFlow(id); err != nil {
		return err
	}
	return p.rules.Del(id)
}

// Flows implements control.Handler.
func (p *Port) Flows() ([]control.FlowRule, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.state.Rules), nil
}

// SetRSS implements control.Handler.
func (p *Port) SetRSS(r control.RSS) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.HashTypes&^hashTypes != 0 {
		return fmt.Errorf("rss: hash types %#x: only %#x are known: %w", r.HashTypes, hashTypes, syscall.EOPNOTSUPP)
	}
	if err := p.state.SetRSS(r, p.conf.MaxRSS); err != nil {
		return err
	}
	p.asked = true
	p.steerAnew()
	return nil
}

// RSS implements control.Handler.
func (p *Port) RSS() (control.RSS, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.state.RSS
	r.Table = slices.Clone(r.Table)
	return r, nil
}

// GPUs implements control.Handler.
func (p *Port) GPUs() ([]control.GPUInfo, error) {
	out := make([]control.GPUInfo, 0, len(p.conf.GPUs))
	for _, g := range p.conf.GPUs {
		i := g.Info
		i.ID, i.Size = uint16(g.ID()), g.Size()
		switch g.Path.Kind {
		case gpumem.PathBus:
			i.P2P = control.P2PBus
		case gpumem.PathHostBridge:
			i.P2P = control.P2PHostBridge
		default:
			i.P2P = control.P2PNone
		}
		out = append(out, i)
	}
	return out, nil
}

// GPUMaps implements control.Handler.
func (p *Port) GPUMaps() (maps []control.GPUMap, err error) {
	for _, r := range p.space.Regions() {
		if r.NoAccess || r.File.GPU() < 0 || p.registry.GPU(r.File.GPU()) == nil {
			continue
		}
		maps = append(maps, control.GPUMap{ID: uint32(len(maps) + 1), GPU: uint16(r.File.GPU()), IOVA: r.IOVA, Off: r.FileOffset, Size: r.Size})
	}
	return maps, nil
}

// RegisterBuffer implements control.Handler.
func (p *Port) RegisterBuffer(b control.Buffer) (uint32, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	id, err := p.registry.RegisterBuffer(int(b.GPU), b.Off, b.Size)
	if err != nil {
		return 0, err
	}
	b.ID = id
	p.state.AddBuffer(b)
	return id, nil
}

// UnregisterBuffer implements control.Handler. It waits for a piece of an engine's work at most.
func (p *Port) UnregisterBuffer(id uint32) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.state.DelBuffer(id); err != nil {
		return err
	}
	return p.registry.Unregister(id)
}

// Buffers implements control.Handler.
func (p *Port) Buffers() ([]control.Buffer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.state.Buffers), nil
}

// errDriverBinds says that a NIC whose driver lays out its queues cannot hold it to a binding.
var errDriverBinds = fmt.Errorf("binding: the driver's own business on this NIC: %w", syscall.EOPNOTSUPP)

// BindRx implements control.Handler.
func (p *Port) BindRx(buffer uint32, queues []uint16) (uint32, error) {
	if p.conf.QueueSplits {
		return 0, errDriverBinds
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state.BindRx(buffer, queues, maxBindings)
}

// BindTx implements control.Handler.
func (p *Port) BindTx(buffer uint32) (uint32, error) {
	if p.conf.QueueSplits {
		return 0, errDriverBinds
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state.BindTx(buffer, maxBindings)
}

// Unbind implements control.Handler.
func (p *Port) Unbind(id uint32) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state.Unbind(id)
}

// Bindings implements control.Handler.
func (p *Port) Bindings() ([]control.Binding, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.state.Bindings), nil
}

// AddMeter implements control.Handler.
func (p *Port) AddMeter(m control.Meter) (uint32, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	id, err := p.state.AddMeter(m, maxMeters)
	if err != nil {
		return 0, err
	}
	mt := &meter{id: id}
	mt.rx.flow, mt.tx.flow = meterFlows(m)
	now := append(slices.Clone(*p.meters.Load()), mt)
	p.meters.Store(&now)
	return id, nil
}

// ReadMeter implements control.Handler.
func (p *Port) ReadMeter(id uint32) (control.MeterCounters, error) {
	for _, m := range *p.meters.Load() {
		if m.id == id {
			return control.MeterCounters{Rx: m.rx.Read(), Tx: m.tx.Read()}, nil
		}
	}
	return control.MeterCounters{}, fmt.Errorf("no meter %d: %w", id, syscall.ENOENT)
}

// DelMeter implements control.Handler.
func (p *Port) DelMeter(id uint32) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.state.DelMeter(id); err != nil {
		return err
	}
	now := slices.DeleteFunc(slices.Clone(*p.meters.Load()), func(m *meter) bool { return m.id == id })
	p.meters.Store(&now)
	return nil
}

// PortCounters implements control.Handler.
func (p *Port) PortCounters() (c control.PortCounters, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, q := range p.queues {
		sum(&c.Rx, q.in.Read())
	}
	for _, t := range p.transmitters {
		sum(&c.Tx, t.out.Read())
	}
	e := p.engine.Stats()
	c.Engine = control.EngineCounters{Jobs: e.Jobs, Failed: e.Failed, Gathered: e.Gathered, ToGuest: e.ToGuest,
		FromGuest: e.FromGuest, Filled: e.Filled, Hashed: e.Hashed, TableBytes: e.TableBytes}
	return c, nil
}

// State gives a copy of all that commands have set up.
func (p *Port) State() *control.State {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state.Clone()
}

func putAddr(b *[16]byte, a netip.Addr) {
	a = a.Unmap()
	if a.Is4() {
		v4 := a.As4()
		copy(b[:], v4[:])
		return
	}
	*b = a.As16()
}

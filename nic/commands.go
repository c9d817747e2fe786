package nic

import (
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"vnic.dev/vnic/control"
	"vnic.dev/vnic/gpumem"
	"vnic.dev/vnic/splitter"
)

// hashTypes are what RSS hashes: 4-tuples of TCP and UDP, 2-tuples of the rest.
const hashTypes = control.HashIPv4 | control.HashTCPv4 | control.HashUDPv4 | control.HashIPv6 | control.HashTCPv6 | control.HashUDPv6

// Generation implements control.Handler.
func (p *Port) Generation() uint32 { return p.generation.Load() }

// Info implements control.Handler. The driver that asks knows the generation from now on.
func (p *Port) Info() (control.Info, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.resumed {
		p.resumed = false
		p.steer0()
	}
	i := control.Info{Generation: p.generation.Load(), MAC: p.conf.MAC, MTU: uint16(p.mtu.Load()),
		QueuePairs: uint16(len(p.queues)), HeaderLimit: uint16(p.conf.HeaderLimit), MaxRSS: control.MaxRSSTable,
		MaxRules: maxRules, MaxBuffers: maxBuffers, MaxBindings: maxBindings, MaxMeters: maxMeters, MaxJobs: maxJobs,
		GPUs: uint16(len(p.conf.GPUs))}
	if p.p2p.Load() != 0 {
		i.Flags |= control.InfoP2P
	}
	return i, nil
}

// SetSplit implements control.Handler. Queue 0 is never split: it carries what cannot be, and the answers to commands.
func (p *Port) SetSplit(s control.Split) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.splittable(s.Queue); err != nil {
		return err
	}
	if b := p.boundTo(s.Queue); b != 0 && (!s.On || s.Threshold != 0) {
		return fmt.Errorf("receive queue %d is bound (%d) and must split everything: %w", s.Queue, b, syscall.EINVAL)
	}
	was := p.state.Splits[s.Queue].On
	p.state.Splits[s.Queue] = s
	p.steer0()
	if was && !s.On {
		p.queues[s.Queue].giveBack()
	}
	return nil
}

func (p *Port) splittable(q uint16) error {
	switch {
	case int(q) >= len(p.queues):
		return fmt.Errorf("no receive queue %d, there are %d: %w", q, len(p.queues), syscall.EINVAL)
	case q == 0:
		return fmt.Errorf("receive queue 0 is never split or bound: %w", syscall.EINVAL)
	}
	return nil
}

// boundTo gives the receive binding of a queue, 0 for none.
func (p *Port) boundTo(q uint16) uint32 {
	for _, b := range p.state.Bindings {
		if !b.Tx && slices.Contains(b.Queues, q) {
			return b.ID
		}
	}
	return 0
}

// Split implements control.Handler.
func (p *Port) Split(queue uint16) (control.Split, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if int(queue) >= len(p.queues) {
		return control.Split{}, fmt.Errorf("no receive queue %d, there are %d: %w", queue, len(p.queues), syscall.EINVAL)
	}
	return p.state.Splits[queue], nil
}

// AddFlow implements control.Handler.
func (p *Port) AddFlow(r control.FlowRule) (uint32, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if int(r.Queue) >= len(p.queues) {
		return 0, fmt.Errorf("flow rule: no receive queue %d, there are %d: %w", r.Queue, len(p.queues), syscall.EINVAL)
	}
	r.ID = p.state.LastID + 1
	rule := splitter.Rule{ID: r.ID, Queue: r.Queue, Fields: splitter.FieldProto}
	rule.Flow.Proto, rule.Flow.IPv6 = r.Proto, r.IPv6
	if r.Src.IsValid() {
		rule.Fields |= splitter.FieldSrc
		putAddr(&rule.Flow.Src, r.Src)
	}
	if r.Dst.IsValid() {
		rule.Fields |= splitter.FieldDst
		putAddr(&rule.Flow.Dst, r.Dst)
	}
	if r.SrcPort != 0 {
		rule.Fields |= splitter.FieldSrcPort
		rule.Flow.SrcPort = r.SrcPort
	}
	if r.DstPort != 0 {
		rule.Fields |= splitter.FieldDstPort
		rule.Flow.DstPort = r.DstPort
	}
	if err := p.rules.Add(rule); err != nil {
		return 0, fmt.Errorf("flow rule: %w", ruleErrno(err))
	}
	p.state.LastID = r.ID
	p.state.Rules = append(p.state.Rules, r)
	return r.ID, nil
}

// DelFlow implements control.Handler.
func (p *Port) DelFlow(id uint32) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.rules.Del(id); err != nil {
		return fmt.Errorf("flow rule %d: %w", id, ruleErrno(err))
	}
	p.state.Rules = slices.DeleteFunc(p.state.Rules, func(r control.FlowRule) bool { return r.ID == id })
	return nil
}

// Flows implements control.Handler.
func (p *Port) Flows() ([]control.FlowRule, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.state.Rules), nil
}

// SetRSS implements control.Handler.
func (p *Port) SetRSS(r control.RSS) error {
	if _, err := splitter.NewRSS(r.Key, r.Table); err != nil {
		return fmt.Errorf("rss: %w: %w", err, syscall.EINVAL)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, q := range r.Table {
		if int(q) >= len(p.queues) {
			return fmt.Errorf("rss: no receive queue %d, there are %d: %w", q, len(p.queues), syscall.EINVAL)
		}
	}
	p.state.RSS = r
	p.steer0()
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
	var out []control.GPUInfo
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

// RegisterBuffer implements control.Handler.
func (p *Port) RegisterBuffer(b control.Buffer) (uint32, error) {
	return p.registry.RegisterBuffer(int(b.GPU), b.Off, b.Size)
}

// UnregisterBuffer implements control.Handler.
func (p *Port) UnregisterBuffer(id uint32) error { return p.registry.Unregister(id) }

// Buffers implements control.Handler.
func (p *Port) Buffers() ([]control.Buffer, error) {
	var out []control.Buffer
	for _, b := range p.registry.Buffers() {
		out = append(out, control.Buffer{ID: b.ID, GPU: uint16(b.GPU), Off: b.Off, Size: b.Size})
	}
	return out, nil
}

// BindRx implements control.Handler. The errors are those of the kernel's bind-rx (net/core/netdev-genl.c).
func (p *Port) BindRx(buffer uint32, queues []uint16) (uint32, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(queues) == 0 {
		return 0, fmt.Errorf("bind-rx: no queues: %w", syscall.EINVAL)
	}
	for _, q := range queues {
		if err := p.splittable(q); err != nil {
			return 0, fmt.Errorf("bind-rx: %w", err)
		}
		switch s := p.state.Splits[q]; {
		case !s.On:
			return 0, fmt.Errorf("bind-rx: header split of receive queue %d is off: %w", q, syscall.EINVAL)
		case s.Threshold != 0:
			return 0, fmt.Errorf("bind-rx: split threshold of receive queue %d is not zero: %w", q, syscall.EINVAL)
		case p.boundTo(q) != 0:
			return 0, fmt.Errorf("bind-rx: receive queue %d is bound already: %w", q, syscall.EEXIST)
		}
	}
	return p.bind(control.Binding{Buffer: buffer, Queues: queues})
}

// BindTx implements control.Handler.
func (p *Port) BindTx(buffer uint32) (uint32, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.bind(control.Binding{Buffer: buffer, Tx: true})
}

func (p *Port) bind(b control.Binding) (uint32, error) {
	if len(p.state.Bindings) == maxBindings {
		return 0, fmt.Errorf("bind: %d bindings already: %w", maxBindings, syscall.ENOSPC)
	}
	if _, err := p.registry.Retain(b.Buffer); err != nil {
		return 0, fmt.Errorf("bind: %w", err)
	}
	p.state.LastID++
	b.ID = p.state.LastID
	p.state.Bindings = append(p.state.Bindings, b)
	return b.ID, nil
}

// Unbind implements control.Handler.
func (p *Port) Unbind(id uint32) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, b := range p.state.Bindings {
		if b.ID == id {
			p.registry.Release(b.Buffer)
			p.state.Bindings = slices.Delete(p.state.Bindings, i, i+1)
			return nil
		}
	}
	return fmt.Errorf("unbind: no binding %d: %w", id, syscall.ENOENT)
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
	old := *p.meters.Load()
	if len(old) == maxMeters {
		return 0, fmt.Errorf("meter: %d meters already: %w", maxMeters, syscall.ENOSPC)
	}
	p.state.LastID++
	m.ID = p.state.LastID
	mt := &meter{id: m.ID, spec: m}
	mt.rx.flow, mt.tx.flow = meterFlows(m)
	p.state.Meters = append(p.state.Meters, m)
	now := append(slices.Clone(old), mt)
	p.meters.Store(&now)
	return m.ID, nil
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
	old := *p.meters.Load()
	now := slices.DeleteFunc(slices.Clone(old), func(m *meter) bool { return m.id == id })
	if len(now) == len(old) {
		return fmt.Errorf("no meter %d: %w", id, syscall.ENOENT)
	}
	p.meters.Store(&now)
	p.state.Meters = slices.DeleteFunc(p.state.Meters, func(m control.Meter) bool { return m.ID == id })
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
func (p *Port) State() control.State {
	p.mu.Lock()
	s := p.state
	s.Splits = slices.Clone(s.Splits)
	s.Rules = slices.Clone(s.Rules)
	s.Bindings = slices.Clone(s.Bindings)
	s.Meters = slices.Clone(s.Meters)
	p.mu.Unlock()
	s.Buffers, _ = p.Buffers()
	return s
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

func ruleErrno(err error) error {
	switch err {
	case splitter.ErrRuleExists:
		return fmt.Errorf("%w: %w", err, syscall.EEXIST)
	case splitter.ErrNoRule:
		return fmt.Errorf("%w: %w", err, syscall.ENOENT)
	case splitter.ErrRulesFull:
		return fmt.Errorf("%w: %w", err, syscall.ENOSPC)
	}
	return fmt.Errorf("%w: %w", err, syscall.EINVAL)
}

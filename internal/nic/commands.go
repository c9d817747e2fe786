package nic

import (
	"fmt"
	"slices"
	"syscall"

	"vnic.dev/vnic/internal/control"
)

// Most methods in this file carry out commands of the control channel. control.State checks most commands.

// Generation implements control.Handler.
func (p *Port) Generation() uint32 { return p.generation.Load() }

// Info implements control.Handler. It records that the driver has asked in this generation, on which the default RSS
// table depends (defaultRSS), and applies that table unless a driver has set another.
func (p *Port) Info() (control.Info, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.known = true
	p.applyDefaultRSS()
	return p.info(), nil
}

func (p *Port) info() control.Info {
	i := control.Info{Generation: p.generation.Load(), MAC: p.conf.MAC, MTU: uint16(p.mtu.Load()),
		QueuePairs: uint16(len(p.queues)), HeaderLimit: uint16(p.conf.HeaderLimit), MaxRSS: uint16(p.conf.MaxRSS),
		MaxRules: MaxRules, MaxBuffers: maxBuffers, MaxBindings: maxBindings,
		MaxFlowCounters: maxFlowCounters, MaxJobs: maxJobs, GPUs: uint16(len(p.conf.GPUs))}
	if p.p2p.Load() != 0 {
		i.Flags |= control.InfoP2P
	}
	return i
}

// SetSplit implements control.Handler. Header split cannot be turned on for queue 0. With Config.QueueSplits SetSplit
// refuses each call. If it turns split off on a queue that is a Returner, posted buffers return to the driver before
// steering changes: they are laid out for split frames.
func (p *Port) SetSplit(s control.Split) error {
	if p.conf.QueueSplits {
		return fmt.Errorf("split of queue %d: it goes with the queue's ring, which is the driver's to set up: %w", s.Queue,
			syscall.EOPNOTSUPP)
	}
	p.splitMu.Lock()
	defer p.splitMu.Unlock()
	state := *p.state()
	was, _ := state.Split(s.Queue)
	if err := state.SetSplit(s); err != nil {
		return err
	}
	p.FlushRx(int(s.Queue)) // open merges end by the old setting
	if was.On && !s.On {
		p.returnBuffers(s.Queue)
	}
	return p.change(func(state *control.State) error { return state.SetSplit(s) })
}

// SplitQueue turns header split of a queue on or off, on a port with Config.QueueSplits. The queue must be stopped.
func (p *Port) SplitQueue(queue int, on bool) {
	_ = p.change(func(s *control.State) error {
		s.Splits = slices.Clone(s.Splits)
		s.Splits[queue] = control.Split{Queue: uint16(queue), On: on}
		return nil
	})
}

// Split implements control.Handler.
func (p *Port) Split(queue uint16) (control.Split, error) { return p.state().Split(queue) }

// AddFlow implements control.Handler.
func (p *Port) AddFlow(r control.FlowRule) (id uint32, err error) {
	return p.add(func(s *control.State) (uint32, error) { return s.AddFlow(r, MaxRules) })
}

// DelFlow implements control.Handler.
func (p *Port) DelFlow(id uint32) error {
	return p.change(func(s *control.State) error { return s.DelFlow(id) })
}

// ReplaceFlow replaces rule old by r, and returns the new rule's id. On an error the old rule stays.
func (p *Port) ReplaceFlow(old uint32, r control.FlowRule) (id uint32, err error) {
	return p.add(func(s *control.State) (uint32, error) {
		if err := s.DelFlow(old); err != nil {
			return 0, err
		}
		return s.AddFlow(r, MaxRules)
	})
}

// Flows implements control.Handler.
func (p *Port) Flows() ([]control.FlowRule, error) { return slices.Clone(p.state().Rules), nil }

// SetRSS implements control.Handler. If r has the port's default table, later changes of the default still apply.
func (p *Port) SetRSS(r control.RSS) error {
	if r.HashTypes&^hashTypes != 0 {
		return fmt.Errorf("rss: hash types %#x: only %#x are known: %w", r.HashTypes, hashTypes, syscall.EOPNOTSUPP)
	}
	return p.change(func(s *control.State) error {
		err := s.SetRSS(r, p.conf.MaxRSS)
		if err == nil {
			p.rssSet = !slices.Equal(r.Table, p.defaultRSS())
		}
		return err
	})
}

// RSS implements control.Handler.
func (p *Port) RSS() (control.RSS, error) {
	r := p.state().RSS
	r.Table = slices.Clone(r.Table)
	return r, nil
}

// GPUs implements control.Handler.
func (p *Port) GPUs() ([]control.GPUInfo, error) {
	out := make([]control.GPUInfo, 0, len(p.conf.GPUs))
	for _, g := range p.conf.GPUs {
		i := g.Info
		i.ID, i.Size, i.P2P = uint16(g.ID()), g.Size(), control.P2P(g.Path.Kind)
		out = append(out, i)
	}
	return out, nil
}

// GPUMaps implements control.Handler.
func (p *Port) GPUMaps() (maps []control.GPUMap, err error) {
	for _, r := range p.memory.Regions() {
		if r.NoAccess || r.File.GPU() < 0 || p.registry.GPU(r.File.GPU()) == nil {
			continue
		}
		maps = append(maps, control.GPUMap{ID: uint32(len(maps) + 1), GPU: uint16(r.File.GPU()), IOVA: r.IOVA,
			Off: r.FileOffset, Size: r.Size})
	}
	return maps, nil
}

// RegisterBuffer implements control.Handler.
func (p *Port) RegisterBuffer(b control.Buffer) (uint32, error) {
	return p.add(func(s *control.State) (_ uint32, err error) {
		if b.ID, err = p.registry.RegisterBuffer(int(b.GPU), b.Off, b.Size); err == nil {
			s.AddBuffer(b)
		}
		return b.ID, err
	})
}

// UnregisterBuffer implements control.Handler.
func (p *Port) UnregisterBuffer(id uint32) error {
	if p.rdma.usesBuffer(id) {
		return fmt.Errorf("buffer %d: a memory region uses it: %w", id, syscall.EBUSY)
	}
	return p.change(func(s *control.State) error {
		if err := s.DelBuffer(id); err != nil {
			return err
		}
		return p.registry.Unregister(id)
	})
}

// Buffers implements control.Handler.
func (p *Port) Buffers() ([]control.Buffer, error) { return slices.Clone(p.state().Buffers), nil }

// errDriverBinds is the error for a binding by command with Config.QueueSplits: the driver posts GPU memory itself.
var errDriverBinds = fmt.Errorf("binding: the driver's own business on this NIC: %w", syscall.EOPNOTSUPP)

// BindRx implements control.Handler.
func (p *Port) BindRx(buffer uint32, queues []uint16) (id uint32, err error) {
	if p.conf.QueueSplits {
		return 0, errDriverBinds
	}
	id, err = p.add(func(s *control.State) (uint32, error) { return s.BindRx(buffer, queues, maxBindings) })
	if err == nil {
		for _, q := range queues {
			p.deviceQueues.add(int(q))
		}
	}
	return id, err
}

// BindTx implements control.Handler.
func (p *Port) BindTx(buffer uint32) (id uint32, err error) {
	if p.conf.QueueSplits {
		return 0, errDriverBinds
	}
	return p.add(func(s *control.State) (uint32, error) { return s.BindTx(buffer, maxBindings) })
}

// Unbind implements control.Handler.
func (p *Port) Unbind(id uint32) error {
	return p.change(func(s *control.State) error { return s.Unbind(id) })
}

// Bindings implements control.Handler.
func (p *Port) Bindings() ([]control.Binding, error) { return p.State().Bindings, nil }

// AddFlowCounter implements control.Handler.
func (p *Port) AddFlowCounter(m control.FlowCounter) (id uint32, err error) {
	return p.add(func(s *control.State) (uint32, error) { return s.AddFlowCounter(m, maxFlowCounters) })
}

// ReadFlowCounter implements control.Handler.
func (p *Port) ReadFlowCounter(id uint32) (control.FlowCounts, error) {
	if m := p.steering.Load().counter(id); m != nil {
		p.settle()
		return control.FlowCounts{Rx: m.rx.Read(), Tx: m.tx.Read()}, nil
	}
	return control.FlowCounts{}, fmt.Errorf("no meter %d: %w", id, syscall.ENOENT)
}

// DelFlowCounter implements control.Handler.
func (p *Port) DelFlowCounter(id uint32) error {
	return p.change(func(s *control.State) error { return s.DelFlowCounter(id) })
}

// PortCounters implements control.Handler.
func (p *Port) PortCounters() (c control.PortCounters, err error) {
	p.settle()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, q := range p.queues {
		c.Rx.Add(q.counters())
	}
	for _, t := range p.transmitters {
		c.Tx.Add(t.out.Read())
	}
	c.Engine = control.EngineCounters(p.engine.Stats())
	return c, nil
}

// State returns a copy of the port's control.State.
func (p *Port) State() *control.State { return p.state().Clone() }

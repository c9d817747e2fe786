package stacktest

import (
	"context"
	"slices"
	"sync"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/splitter"
)

const (
	maxRules    = 16
	maxBindings = 16
	maxRSS      = 128
)

type commands struct {
	mu     sync.Mutex
	state  *control.State
	buffer uint32 // the last id
}

// reset removes all state. Ids that commands return later differ from all earlier ones.
func (c *commands) reset(queues int) {
	last := uint32(0)
	if c.state != nil {
		last = c.state.LastID + 100
	}
	c.state = control.NewState(1, &control.Info{QueuePairs: uint16(queues), MaxRSS: 1}, [40]byte{})
	c.state.LastID = last
}

// queue returns the receive queue of a TCP or UDP packet: of the first rule that matches it, or else of RSS. For
// other packets it is 0.
func (c *commands) queue(h *splitter.Headers) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h.Class != splitter.TCP && h.Class != splitter.UDP {
		return 0
	}
	for _, r := range c.state.Rules {
		if r.IPv6 == h.IPv6 && r.Proto == h.Proto &&
			(r.SrcPort == 0 || r.SrcPort == h.Flow.SrcPort) && (r.DstPort == 0 || r.DstPort == h.Flow.DstPort) &&
			(!r.Src.IsValid() || slices.Equal(r.Src.AsSlice(), h.Flow.Src[:len(r.Src.AsSlice())])) &&
			(!r.Dst.IsValid() || slices.Equal(r.Dst.AsSlice(), h.Flow.Dst[:len(r.Dst.AsSlice())])) {
			return int(r.Queue)
		}
	}
	sum := int(h.Flow.SrcPort)*31 + int(h.Flow.DstPort)
	return int(c.state.RSS.Table[sum%len(c.state.RSS.Table)])
}

func (c *commands) split(queue int, on bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state.SetSplit(control.Split{Queue: uint16(queue), On: on})
}

// Forget removes the state that commands have set up, except the header split of queues that BindQueue has bound.
func (n *NIC) Forget() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ctl.mu.Lock()
	n.ctl.reset(n.o.Queues)
	n.ctl.mu.Unlock()
	for q := range n.bound {
		if n.bound[q].src != nil {
			_ = n.ctl.split(q, true)
		}
	}
}

// Left returns how many registered buffers and bindings the NIC has.
func (n *NIC) Left() (buffers, bindings int) {
	n.ctl.mu.Lock()
	defer n.ctl.mu.Unlock()
	return len(n.ctl.state.Buffers), len(n.ctl.state.Bindings)
}

func (n *NIC) RegisterBuffer(_ context.Context, gpu uint16, off, size uint64) (uint32, error) {
	n.ctl.mu.Lock()
	defer n.ctl.mu.Unlock()
	n.ctl.buffer++
	n.ctl.state.AddBuffer(control.Buffer{ID: n.ctl.buffer, GPU: gpu, Off: off, Size: size})
	return n.ctl.buffer, nil
}

func (n *NIC) UnregisterBuffer(_ context.Context, id uint32) error {
	n.ctl.mu.Lock()
	defer n.ctl.mu.Unlock()
	return n.ctl.state.DelBuffer(id)
}

func (n *NIC) BindRx(_ context.Context, buffer uint32, queues ...uint16) (uint32, error) {
	n.ctl.mu.Lock()
	defer n.ctl.mu.Unlock()
	return n.ctl.state.BindRx(buffer, queues, maxBindings)
}

func (n *NIC) BindTx(_ context.Context, buffer uint32) (uint32, error) {
	n.ctl.mu.Lock()
	defer n.ctl.mu.Unlock()
	return n.ctl.state.BindTx(buffer, maxBindings)
}

func (n *NIC) Unbind(_ context.Context, id uint32) error {
	n.ctl.mu.Lock()
	defer n.ctl.mu.Unlock()
	return n.ctl.state.Unbind(id)
}

func (n *NIC) AddFlow(_ context.Context, r control.FlowRule) (uint32, error) {
	n.ctl.mu.Lock()
	defer n.ctl.mu.Unlock()
	return n.ctl.state.AddFlow(r, maxRules)
}

func (n *NIC) DelFlow(_ context.Context, id uint32) error {
	n.ctl.mu.Lock()
	defer n.ctl.mu.Unlock()
	return n.ctl.state.DelFlow(id)
}

func (n *NIC) SetRSS(_ context.Context, r control.RSS) error {
	n.ctl.mu.Lock()
	defer n.ctl.mu.Unlock()
	return n.ctl.state.SetRSS(r, maxRSS)
}

func (n *NIC) PortCounters(context.Context) (c control.PortCounters, err error) {
	c.Rx.Drops = n.Drops()
	return c, nil
}

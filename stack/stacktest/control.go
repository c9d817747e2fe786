package stacktest

import (
	"context"
	"slices"
	"sync"
	"syscall"

	"vnic.dev/vnic/control"
	"vnic.dev/vnic/splitter"
)

// controlState is what commands set.
type controlState struct {
	mu       *sync.Mutex
	next     uint32
	buffers  map[uint32]bool
	bindings map[uint32]bool
	rules    []control.FlowRule
	table    []uint16
}

func newControlState() controlState {
	return controlState{mu: &sync.Mutex{}, buffers: map[uint32]bool{}, bindings: map[uint32]bool{}, table: []uint16{0}}
}

// queue steers a packet.
func (c *controlState) queue(h *splitter.Headers) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h.Class != splitter.TCP && h.Class != splitter.UDP {
		return 0
	}
	for _, r := range c.rules {
		if r.IPv6 == h.IPv6 && r.Proto == h.Proto &&
			(r.SrcPort == 0 || r.SrcPort == h.Flow.SrcPort) && (r.DstPort == 0 || r.DstPort == h.Flow.DstPort) &&
			(!r.Src.IsValid() || slices.Equal(r.Src.AsSlice(), h.Flow.Src[:len(r.Src.AsSlice())])) &&
			(!r.Dst.IsValid() || slices.Equal(r.Dst.AsSlice(), h.Flow.Dst[:len(r.Dst.AsSlice())])) {
			return int(r.Queue)
		}
	}
	sum := int(h.Flow.SrcPort)*31 + int(h.Flow.DstPort)
	return int(c.table[sum%len(c.table)])
}

func (n *NIC) add(m map[uint32]bool) uint32 {
	n.ctl.next++
	m[n.ctl.next] = true
	return n.ctl.next
}

func remove(m map[uint32]bool, id uint32) error {
	if !m[id] {
		return syscall.ENOENT
	}
	delete(m, id)
	return nil
}

// Forget is a reset of what commands set: buffers, bindings, rules and RSS. New ids are others than before.
func (n *NIC) Forget() {
	n.ctl.mu.Lock()
	defer n.ctl.mu.Unlock()
	n.ctl.next += 100
	clear(n.ctl.buffers)
	clear(n.ctl.bindings)
	n.ctl.rules, n.ctl.table = nil, []uint16{0}
}

// Left is how many buffers and bindings the NIC knows.
func (n *NIC) Left() (buffers, bindings int) {
	n.ctl.mu.Lock()
	defer n.ctl.mu.Unlock()
	return len(n.ctl.buffers), len(n.ctl.bindings)
}

func (n *NIC) RegisterBuffer(ctx context.Context, gpu uint16, off, size uint64) (uint32, error) {
	n.ctl.mu.Lock()
	defer n.ctl.mu.Unlock()
	return n.add(n.ctl.buffers), nil
}

func (n *NIC) UnregisterBuffer(ctx context.Context, id uint32) error {
	n.ctl.mu.Lock()
	defer n.ctl.mu.Unlock()
	return remove(n.ctl.buffers, id)
}

func (n *NIC) BindRx(ctx context.Context, buffer uint32, queues ...uint16) (uint32, error) {
	return n.BindTx(ctx, buffer)
}

func (n *NIC) BindTx(ctx context.Context, buffer uint32) (uint32, error) {
	n.ctl.mu.Lock()
	defer n.ctl.mu.Unlock()
	if !n.ctl.buffers[buffer] {
		return 0, syscall.ENOENT
	}
	return n.add(n.ctl.bindings), nil
}

func (n *NIC) Unbind(ctx context.Context, id uint32) error {
	n.ctl.mu.Lock()
	defer n.ctl.mu.Unlock()
	return remove(n.ctl.bindings, id)
}

func (n *NIC) AddFlow(ctx context.Context, r control.FlowRule) (uint32, error) {
	n.ctl.mu.Lock()
	defer n.ctl.mu.Unlock()
	if int(r.Queue) >= n.o.Queues {
		return 0, syscall.EINVAL
	}
	if len(n.ctl.rules) == 16 {
		return 0, syscall.ENOSPC
	}
	n.ctl.next++
	r.ID = n.ctl.next
	n.ctl.rules = append(n.ctl.rules, r)
	return r.ID, nil
}

func (n *NIC) DelFlow(ctx context.Context, id uint32) error {
	n.ctl.mu.Lock()
	defer n.ctl.mu.Unlock()
	i := slices.IndexFunc(n.ctl.rules, func(r control.FlowRule) bool { return r.ID == id })
	if i < 0 {
		return syscall.ENOENT
	}
	n.ctl.rules = slices.Delete(n.ctl.rules, i, i+1)
	return nil
}

func (n *NIC) SetRSS(ctx context.Context, r control.RSS) error {
	n.ctl.mu.Lock()
	defer n.ctl.mu.Unlock()
	n.ctl.table = slices.Clone(r.Table)
	return nil
}

func (n *NIC) PortCounters(ctx context.Context) (control.PortCounters, error) {
	var c control.PortCounters
	c.Rx.Drops = n.Drops()
	return c, nil
}

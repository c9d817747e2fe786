package stack

import (
	"sync"

	"gvisor.dev/gvisor/pkg/buffer"
	"vnic.dev/vnic/gpumem"
	"vnic.dev/vnic/internal/driver"
)

// maxSlots bounds a shadow queue's address space to 4 GiB.
const maxSlots = 1 << 16

// shadowQueue is one receive queue's part of a binding: its shadow, and for each slot of the shadow the pieces of GPU
// memory with the payload. An element of slots belongs to the code that has taken the slot, until it releases the slot.
type shadowQueue struct {
	queue   int
	binding *rxBinding
	shadow  *shadow
	slots   [][]gpumem.Piece

	mu   sync.Mutex // protects free and the shadow
	free []uint32
}

func makeShadowQueue(queue int, b *rxBinding, sh *shadow, n int) *shadowQueue {
	l := &shadowQueue{queue: queue, binding: b, shadow: sh, slots: make([][]gpumem.Piece, n), free: make([]uint32, 0, n)}
	for i := n - 1; i > junkSlot; i-- {
		l.free = append(l.free, uint32(i))
	}
	return l
}

// take records in a free slot the n bytes that the device wrote to ranges. It returns false if no slot is free or the
// pool refuses the ranges: the caller then still owns them.
func (l *shadowQueue) take(ranges []driver.Range, n int) (slot uint32, ok bool) {
	l.mu.Lock()
	if len(l.free) == 0 {
		l.mu.Unlock()
		return 0, false
	}
	slot = l.free[len(l.free)-1]
	l.free = l.free[:len(l.free)-1]
	l.mu.Unlock()
	var rs [gpumem.FramePages]gpumem.Range
	if l.slots[slot], ok = l.binding.pool.Receive(l.slots[slot], places(rs[:0], ranges), n); !ok {
		l.mu.Lock()
		l.free = append(l.free, slot)
		l.mu.Unlock()
		return junkSlot, false
	}
	return slot, true
}

// discard returns the ranges of a frame to the pool, undelivered.
func (l *shadowQueue) discard(ranges []driver.Range) {
	var rs [gpumem.FramePages]gpumem.Range
	l.binding.pool.Discard(places(rs[:0], ranges))
}

func places(dst []gpumem.Range, ranges []driver.Range) []gpumem.Range {
	for _, r := range ranges {
		dst = append(dst, gpumem.Range(r))
	}
	return dst
}

// view returns a view of a slot's first n bytes.
func (l *shadowQueue) view(slot uint32, n int) *buffer.View {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.shadow.view(slot, n)
}

// release releases a slot, and its references to pages.
func (l *shadowQueue) release(slot uint32) {
	l.binding.pool.Release(l.slots[slot])
	l.mu.Lock()
	l.free = append(l.free, slot)
	l.mu.Unlock()
}

package gve

import (
	"fmt"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/nic"
)

// sabotaged wraps a receive queue in the ring fault of s, or returns q if s has none. s may be nil.
func sabotaged(q *rxQueue, s *nic.Sabotage) nic.RxQueue {
	switch s.RingFault() {
	case nic.RingEnd:
		return &earlyEnd{q, s.Occasions()}
	case nic.RingGeneration:
		return &oldGeneration{q, s.Occasions()}
	}
	return q
}

// earlyEnd marks the first buffer of some frames in several buffers as the last one; occasions selects the frames.
type earlyEnd struct {
	*rxQueue
	occasions nic.Occasions
}

// Put implements nic.RxQueue.
func (q *earlyEnd) Put(m *nic.Mover, f *nic.Frame) (res nic.Result) {
	first := q.head
	if res = q.rxQueue.Put(m, f); res != nic.PutTaken || q.head-first < 2 {
		return res
	}
	if q.occasions.Due() {
		q.end(first)
	}
	q.occasions.Pass()
	return res
}

// end sets the end-of-packet bit of completion i, which is not published yet.
func (q *earlyEnd) end(i uint32) {
	var err error
	defer dma.Recover(&err)
	q.out.entryAt(i)[8] |= rxEOP
}

// oldGeneration publishes some completions with the generation bit of the previous lap; occasions selects them.
type oldGeneration struct {
	*rxQueue
	occasions nic.Occasions
}

// Flush implements nic.RxQueue.
func (q *oldGeneration) Flush() (call bool) {
	if q.shown == q.head || q.out.pins == nil {
		return false
	}
	if err := q.publish(); err != nil {
		q.fail(fmt.Errorf("receive queue %d: completions: %w", q.id, err))
	}
	return true
}

func (q *oldGeneration) publish() (err error) {
	defer dma.Recover(&err)
	for ; q.shown != q.head; q.shown++ {
		word := q.words[q.shown&q.out.mask]
		if q.out.even(q.shown) != q.occasions.Due() {
			word |= rxGeneration
		}
		q.occasions.Pass()
		dma.StoreWord(q.out.entryAt(q.shown)[4:], word)
	}
	return nil
}

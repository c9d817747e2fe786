package capture

import "sync/atomic"

// ring is a bounded queue of records for many producers and one consumer, after Dmitry Vyukov's
// bounded MPMC queue: each slot has a sequence number that says whose turn it is. A record is
// reserved, filled, and then committed; the consumer sees records in the order in which they were
// reserved.
type ring struct {
	slots []record
	mask  uint64
	tail  atomic.Uint64 // the next to be reserved
	head  uint64        // the next to be consumed; the consumer's
}

// newRing makes a ring of n records, a power of two, with room for size bytes of frame each.
func newRing(n, size int) *ring {
	r := &ring{slots: make([]record, n), mask: uint64(n - 1)}
	room := make([]byte, n*size)
	for i := range r.slots {
		r.slots[i].turn.Store(uint64(i))
		r.slots[i].data = room[i*size : (i+1)*size : (i+1)*size]
	}
	return r
}

// reserve gives the next record, nil if all are waiting to be written.
func (r *ring) reserve() *record {
	for {
		at := r.tail.Load()
		s := &r.slots[at&r.mask]
		switch turn := s.turn.Load(); {
		case turn == at:
			if r.tail.CompareAndSwap(at, at+1) {
				s.at = at
				return s
			}
		case int64(turn-at) < 0: // of the lap before, and not consumed yet
			return nil
		}
	}
}

// at gives a record that is reserved.
func (r *ring) at(at uint64) *record { return &r.slots[at&r.mask] }

// commit hands a record to the consumer.
func (s *record) commit() { s.turn.Store(s.at + 1) }

// next gives the next record that is committed, nil if there is none yet.
func (r *ring) next() *record {
	if s := &r.slots[r.head&r.mask]; s.turn.Load() == r.head+1 {
		return s
	}
	return nil
}

// free gives the record that next gave back to the producers.
func (r *ring) free() {
	r.slots[r.head&r.mask].turn.Store(r.head + uint64(len(r.slots)))
	r.head++
}

// empty says whether nothing is reserved.
func (r *ring) empty() bool { return r.tail.Load() == r.head }

package capture

import "sync/atomic"

// ring is a bounded queue of records for many producers and one consumer, after Dmitry Vyukov's bounded MPMC
// queue: each slot has a sequence number (turn) that shows whether a producer may reserve it or the consumer may read
// it. The consumer sees committed records in the order in which they were reserved.
type ring struct {
	slots []record
	mask  uint64
	tail  atomic.Uint64 // number of the next record to reserve
	head  uint64        // number of the next record to consume; only the consumer uses it
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

// reserve returns the next record; nil: all are in use.
func (r *ring) reserve() *record {
	for {
		i := r.tail.Load()
		s := &r.slots[i&r.mask]
		switch turn := s.turn.Load(); {
		case turn == i:
			if r.tail.CompareAndSwap(i, i+1) {
				s.index = i
				return s
			}
		case int64(turn-i) < 0: // not consumed yet
			return nil
		}
	}
}

func (r *ring) reserved(i uint64) *record { return &r.slots[i&r.mask] }

func (s *record) commit() { s.turn.Store(s.index + 1) }

// next returns the next committed record; nil: none yet.
func (r *ring) next() *record {
	if s := &r.slots[r.head&r.mask]; s.turn.Load() == r.head+1 {
		return s
	}
	return nil
}

// free lets producers reserve the record again that next has returned.
func (r *ring) free() {
	r.slots[r.head&r.mask].turn.Store(r.head + uint64(len(r.slots)))
	r.head++
}

func (r *ring) empty() bool { return r.tail.Load() == r.head }

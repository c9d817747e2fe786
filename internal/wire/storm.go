package wire

import "sync/atomic"

// storm limits how many packets to group addresses a port sends a second. It is a token bucket with room for the
// packets of a tenth of a second, at least stormLeast. It stores when the bucket will be full again (the generic cell
// rate algorithm of ITU-T I.371).
type storm struct {
	each  int64 // nanoseconds in which the bucket gains a packet; 0: no limit
	spare int64 // nanoseconds in which an empty bucket becomes full
	full  atomic.Int64
	now   func() int64
}

const stormLeast = 32

func (s *storm) init(rate int, now func() int64) {
	if rate > 0 {
		s.each = max(1, 1e9/int64(rate))
		s.spare = max(1e8, stormLeast*s.each)
		s.now = now
	}
}

// pass takes a packet from the bucket; false: the bucket is empty. Without a limit it returns true.
func (s *storm) pass() bool {
	if s.each == 0 {
		return true
	}
	now := s.now()
	for {
		full := s.full.Load()
		next := max(full, now) + s.each
		if next > now+s.spare {
			return false
		}
		if s.full.CompareAndSwap(full, next) {
			return true
		}
	}
}

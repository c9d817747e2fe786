package wire

import "sync/atomic"

// storm bounds how many frames to group addresses a port sends: each costs every other port. It is a bucket that holds
// a tenth of a second's frames, kept as the time at which it will be full again (the generic cell rate algorithm of
// ITU-T I.371).
type storm struct {
	each  int64 // nanoseconds that a frame takes; 0: any number may pass
	spare int64 // nanoseconds that frames may be early by
	full  atomic.Int64
	now   func() int64
}

// stormLeast are the frames of a burst that pass at any rate.
const stormLeast = 32

func (s *storm) init(rate int, now func() int64) {
	if rate > 0 {
		s.each = max(1, 1e9/int64(rate))
		s.spare = max(1e8, stormLeast*s.each)
		s.now = now
	}
}

// pass says whether one more frame may pass.
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

package nic

import (
	"sync/atomic"
	"time"

	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/wire"
)

const patienceSteps = 16

// Patience decides for a Sender how long frames wait for busy receivers. The zero value is ready.
//
// A host may take the processors from all threads for a second, in which a receiver cannot post buffers. So the
// time between two looks at the clock, which a Sender with held frames makes once a Step, counts as at most two Steps.
type Patience struct {
	Limit   time.Duration // 0: limits.Patience.Here()
	stalled [4]stalled

	looked time.Time
	lost   time.Duration // how far the Sender's clock is behind real time
}

func (p *Patience) limit() time.Duration {
	if p.Limit != 0 {
		return p.Limit
	}
	return limits.Patience.Here()
}

// Step returns the interval at which a waiting Sender looks at the clock: a 16th of the limit, but at least 1 µs.
func (p *Patience) Step() time.Duration { return max(p.limit()/patienceSteps, time.Microsecond) }

// Pass converts real time to the Sender's clock, and records the look. waited: the Sender has held frames since
// the previous call; otherwise all time since then counts.
func (p *Patience) Pass(now time.Time, waited bool) time.Time {
	if late := now.Sub(p.looked) - 2*p.Step(); waited && late > 0 {
		p.lost += late
	}
	p.looked = now
	return p.clockAt(now)
}

// clockAt converts real time to the Sender's clock between two looks.
func (p *Patience) clockAt(now time.Time) time.Time { return now.Add(-p.lost) }

// stalled has the penalty, which may be over, of a receiver that took no frame of this Sender for the limit, while the
// Sender held frames for it.
type stalled struct {
	receiver wire.Waitable // nil: free
	until    time.Time     // until then, frames to it do not wait unless it posts buffers
	penalty  time.Duration
	posted   atomic.Bool // since the first penalty began the receiver has posted buffers, or stopped
}

// Wake implements wire.Waker, on any goroutine.
func (s *stalled) Wake() { s.posted.Store(true) }

// ShouldWait reports whether a frame that has waited for receiver from since to now, by the Sender's clock, may go on
// waiting. If it may not because the limit has passed, ShouldWait calls penalize for the receiver.
func (p *Patience) ShouldWait(receiver wire.Waitable, since, now time.Time) bool {
	s := p.find(receiver)
	if s != nil && s.posted.Load() {
		s.reset()
		s = nil
	}
	if s != nil && now.Before(s.until) {
		return false
	}
	if now.Sub(since) < p.limit() {
		return true
	}
	p.penalize(s, receiver, now)
	return false
}

func (p *Patience) find(receiver wire.Waitable) *stalled {
	for i := range p.stalled {
		if s := &p.stalled[i]; s.receiver == receiver {
			return s
		}
	}
	return nil
}

// penalize starts a penalty for a receiver, during which frames to it do not wait. If s is not nil, it has the previous
// penalty, and the new one is twice as long, but at most limits.LastPenalty.Here(). If s is nil, a receiver that has
// buffers already, or has stopped, gets no penalty.
func (p *Patience) penalize(s *stalled, receiver wire.Waitable, now time.Time) {
	if s != nil {
		s.penalty = min(2*s.penalty, limits.LastPenalty.Here())
		s.until = now.Add(s.penalty)
		return
	}
	s = &p.stalled[0] // a free entry, or the one whose penalty ends first
	for i := range p.stalled {
		if o := &p.stalled[i]; o.receiver == nil || s.receiver != nil && o.until.Before(s.until) {
			s = o
		}
	}
	s.reset()
	s.posted.Store(false)
	if receiver.Arm(s) {
		s.receiver, s.penalty, s.until = receiver, limits.FirstPenalty.Here(), now.Add(limits.FirstPenalty.Here())
	}
}

func (s *stalled) reset() {
	if s.receiver != nil {
		s.receiver.Disarm(s)
		s.receiver = nil
	}
}

// Reset ends all penalties.
func (p *Patience) Reset() {
	for i := range p.stalled {
		p.stalled[i].reset()
	}
}

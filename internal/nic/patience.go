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
// time between two looks at the clock, which a waiting Sender makes once a Step, counts as at most two Steps.
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

// Step returns the interval at which a waiting Sender looks at the clock.
func (p *Patience) Step() time.Duration { return max(p.limit()/patienceSteps, time.Microsecond) }

// Pass converts real time to the Sender's clock, and records the look. waited: the Sender has held frames since
// the previous call.
func (p *Patience) Pass(now time.Time, waited bool) time.Time {
	if late := now.Sub(p.looked) - 2*p.Step(); waited && late > 0 {
		p.lost += late
	}
	p.looked = now
	return p.clockAt(now)
}

// clockAt converts real time between two looks.
func (p *Patience) clockAt(now time.Time) time.Time { return now.Add(-p.lost) }

// stalled is a receiver that took no frame of this Sender for the limit, while the Sender held frames for it.
type stalled struct {
	receiver wire.Waitable // nil: free
	until    time.Time     // until then, frames to it do not wait unless it posts buffers
	penalty  time.Duration
	posted   atomic.Bool // it has had buffers since
}

// Wake implements wire.Waker, on any goroutine.
func (s *stalled) Wake() { s.posted.Store(true) }

// ShouldWait reports whether a frame that has waited for a receiver since a time may go on waiting.
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

// penalize starts a penalty for a receiver, unless it has buffers already. During it, frames to the receiver do
// not wait. A penalty that follows one (s is not nil) is twice as long, but at most limits.LastPenalty.Here().
func (p *Patience) penalize(s *stalled, receiver wire.Waitable, now time.Time) {
	if s != nil {
		s.penalty = min(2*s.penalty, limits.LastPenalty.Here())
		s.until = now.Add(s.penalty)
		return
	}
	s = &p.stalled[0] // a free entry, or the one that ends first
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

package nic

import (
	"sync/atomic"
	"time"

	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/wire"
)

// patienceSteps are in Limit.
const patienceSteps = 16

// Patience decides for a Sender how long frames wait for busy receivers: a dead guest must not
// stall frames to others again and again. The zero value is ready.
//
// Its times are those of the Sender's own clock, which Pass keeps. A host may take the processors from
// all threads for a second; who was not looked for in that time has not failed to come. So a Sender that
// waits looks at the clock once a Step, and what passes between two looks counts as two Steps at most.
type Patience struct {
	Limit   time.Duration // 0: limits.Patience; limit has it
	stalled [4]stalled

	looked time.Time     // real
	lost   time.Duration // what real time is ahead of the Sender's
}

// limit is how long frames wait, on a machine that may have been found to be slow since they began to.
func (p *Patience) limit() time.Duration {
	if p.Limit != 0 {
		return p.Limit
	}
	return limits.Patience.Here()
}

// Step is how often a Sender that waits looks at the clock.
func (p *Patience) Step() time.Duration { return max(p.limit()/patienceSteps, time.Microsecond) }

// Pass gives the time by the Sender's clock at a real one. waited says that frames have been held since
// the call before.
func (p *Patience) Pass(now time.Time, waited bool) time.Time {
	if late := now.Sub(p.looked) - 2*p.Step(); waited && late > 0 {
		p.lost += late
	}
	p.looked = now
	return p.at(now)
}

// at is Pass where nothing has to be kept: in between two looks.
func (p *Patience) at(now time.Time) time.Time { return now.Add(-p.lost) }

// stalled is a receiver that was waited for in vain. It is forgotten as soon as the receiver gets
// buffers.
type stalled struct {
	receiver wire.Waitable // nil: none
	until    time.Time     // the next frame is waited for again
	penalty  time.Duration
	posted   atomic.Bool // the receiver got buffers
}

// Wake implements wire.Waker, on any goroutine.
func (s *stalled) Wake() { s.posted.Store(true) }

// ShouldWait says whether a frame that has waited for a receiver since then is to wait on.
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

// penalize begins the penalty of a receiver, or a longer one for s, which has served one.
func (p *Patience) penalize(s *stalled, receiver wire.Waitable, now time.Time) {
	if s != nil {
		s.penalty = min(2*s.penalty, limits.LastPenalty.Here())
		s.until = now.Add(s.penalty)
		return
	}
	s = &p.stalled[0] // a free one, else that which ends first
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

// Reset ends all penalties, as the queue stops.
func (p *Patience) Reset() {
	for i := range p.stalled {
		p.stalled[i].reset()
	}
}

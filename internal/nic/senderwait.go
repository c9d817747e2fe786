package nic

import (
	"math"
	"sync/atomic"
	"time"

	"vnic.dev/vnic/internal/lab/shape"
)

// Wait waits until the driver has more frames and the batch has space, a receiver of held frames
// has buffers, or patience ends: first busily, if that is allowed and nothing is held, then asleep.
func (s *Sender) Wait() error {
	if s.kicked && s.held == 0 && s.spin() {
		return nil
	}
	defer s.resume()
	if !s.prepare() {
		return nil
	}
	kicked, err := s.sleep.sleep(s.kick, s.timeLeft(), s.watch())
	s.kicked = s.kicked || kicked
	return err
}

// prepare asks all for a wake who can give one. false: there is something to do already. resume follows in any case.
// What receivers were asked is taken back behind the next step, as they let others of the port wait until then.
func (s *Sender) prepare() bool {
	s.disarm() // where a poller sleeps again before its turn
	s.trim()
	s.sleep.Park()
	if s.held > 0 && !s.arm() {
		return false
	}
	if s.stopping.Load() {
		return false
	}
	if s.kicked && s.held < len(s.frames) {
		s.asked = true
		return !s.q.EnableKick()
	}
	return true
}

// resume takes back what prepare asked of the driver.
func (s *Sender) resume() {
	if s.asked {
		s.asked = false
		s.q.DisableKick()
	}
	s.sleep.Unpark()
}

// spin waits busily for a moment, and says whether there is something to do.
func (s *Sender) spin() bool {
	if !s.o.Spin || int(workers.Load()) >= s.cores {
		return false
	}
	for end := time.Now().Add(spinTime); ; {
		if s.q.Pending() || s.stopping.Load() {
			return true
		}
		if time.Now().After(end) {
			return false
		}
	}
}

// arm has us woken by the receivers of held frames. false: one of them has buffers by now.
func (s *Sender) arm() bool {
	for _, f := range s.frames[:s.held] {
		receiver := f.Packet.Verdict.Queue
		if n := len(s.armed); receiver == nil || n > 0 && s.armed[n-1] == receiver {
			continue // a link, for which timeLeft wakes us, or the one before
		}
		if len(s.armed) == 0 {
			s.count.waits.add(1)
			s.sleep.port = f.Packet.From // which is the same of all
		}
		if !receiver.Arm(s.sleep) {
			return false
		}
		s.armed = append(s.armed, receiver)
	}
	return true
}

// disarm takes back what arm asked for, and ends the turns that receivers gave us.
func (s *Sender) disarm() {
	for _, receiver := range s.armed {
		receiver.Disarm(s.sleep)
	}
	clear(s.armed)
	s.armed = s.armed[:0]
}

// timeLeft is how long we may sleep; negative: for ever.
func (s *Sender) timeLeft() time.Duration {
	left := s.heldLeft()
	if s.late.some() {
		if late := shape.Until(s.late.list[s.late.next].due); left < 0 || late < left {
			return late
		}
	}
	return left
}

// watch is who looks at the clock while the Sender sleeps; nil: nobody, as no frame is held.
func (s *Sender) watch() *Patience {
	if s.held == 0 {
		return nil
	}
	return &s.patience
}

// heldLeft is how long the held frame whose patience ends first may wait on, or until a link that one waits for is
// free, or the receivers are judged again; negative: none is held.
func (s *Sender) heldLeft() time.Duration {
	if s.held == 0 {
		return -1
	}
	limit := s.patience.limit()
	left := limit
	link := int64(math.MaxInt64) // as many wait for it as have a place: the clock is read once for them
	var first time.Time
	for _, f := range s.frames[:s.held] {
		if until := f.Packet.Verdict.Until; until != 0 {
			link = min(link, until)
		} else if first.IsZero() || f.since.Before(first) {
			first = f.since
		}
	}
	if !first.IsZero() {
		left = max(0, first.Add(limit).Sub(s.patience.Pass(time.Now(), true)))
	}
	if link != math.MaxInt64 {
		left = min(left, shape.Until(link))
	}
	if s.held == len(s.frames) && s.receivers.again {
		return min(left, judgeAgain)
	}
	return left
}

// spinTime bounds the busy wait of a worker for its next frame.
const spinTime = 50 * time.Microsecond

// workers counts the workers with a thread of their own that run now. Where they outnumber the
// cores none of them spins.
var workers atomic.Int32

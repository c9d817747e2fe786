package nic

import (
	"math"
	"sync/atomic"
	"time"

	"vnic.dev/vnic/internal/lab/shape"
)

// Wait waits until there may be work or timeLeft is over. If SenderOptions.Spin is set, the first kick has come and no
// frame is held, it may poll the ring for a moment before it sleeps.
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

// prepare makes the receivers of held frames and, if a frame slot is free, the driver wake the Sender. It returns false
// if there may be work already, or if Stop was called. The caller has to call resume in both cases. Receivers stay
// armed until the end of the Sender's next round, because the port's turn (RxBase) lasts that long, or until the next
// prepare.
func (s *Sender) prepare() bool {
	s.disarm() // a poller may have called prepare since the last step
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

func (s *Sender) resume() {
	if s.asked {
		s.asked = false
		s.q.DisableKick()
	}
	s.sleep.Unpark()
}

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

// arm makes the receivers of held frames wake the Sender. It returns false if one of them may have buffers already, or
// has stopped.
func (s *Sender) arm() bool {
	for _, f := range s.frames[:s.held] {
		receiver := f.Packet.Verdict.Queue
		if n := len(s.armed); receiver == nil || n > 0 && s.armed[n-1] == receiver {
			continue // the frame waits for a link (timeLeft), or for the receiver armed last
		}
		if len(s.armed) == 0 {
			s.count.waits.add(1)
			s.sleep.port = f.Packet.From // all frames come from one port
		}
		if !receiver.Arm(s.sleep) {
			return false
		}
		s.armed = append(s.armed, receiver)
	}
	return true
}

func (s *Sender) disarm() {
	for _, receiver := range s.armed {
		receiver.Disarm(s.sleep)
	}
	clear(s.armed)
	s.armed = s.armed[:0]
}

// timeLeft returns how long the worker may sleep; negative: for ever.
func (s *Sender) timeLeft() time.Duration {
	left := s.heldLeft()
	if s.late.some() {
		if late := shape.Until(s.late.list[s.late.next].due); left < 0 || late < left {
			return late
		}
	}
	return left
}

func (s *Sender) watch() *Patience {
	if s.held == 0 {
		return nil
	}
	return &s.patience
}

// heldLeft returns how long the worker may sleep because of held frames; negative: no frame is held.
func (s *Sender) heldLeft() time.Duration {
	if s.held == 0 {
		return -1
	}
	limit := s.patience.limit()
	left := limit
	link := int64(math.MaxInt64) // when the first link is free, by shape.Now; MaxInt64: no frame waits for a link
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

// spinTime bounds for how long a worker polls before it sleeps.
const spinTime = 50 * time.Microsecond

// workers counts the running workers with a locked thread. If they are as many as Sender.cores (GOMAXPROCS) or more, a
// worker does not poll before it sleeps.
var workers atomic.Int32

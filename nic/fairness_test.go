package nic

import (
	"fmt"
	"testing"
	"time"

	"vnic.dev/vnic/wire"
)

type queueNamed string

func (queueNamed) Arm(wire.Waker) bool { return true }
func (queueNamed) Disarm(wire.Waker)   {}

// sim is a sender's view of two receivers, by a clock of its own: each step is a millisecond.
type sim struct {
	rs    receivers
	now   time.Time
	slots [32]*TxFrame
	held  int
	slow  int // frames given up
}

func newSim() *sim {
	s := &sim{now: time.Unix(1000, 0)}
	for i := range s.slots {
		s.slots[i] = &TxFrame{}
	}
	return s
}

// round sends what is held and as many new frames as there is space for: those to r are taken as long as *buffers
// lasts, and each share-th of the new ones goes to another receiver. It says how many of these there were.
func (s *sim) round(r wire.Waitable, buffers *int, share, backlog int) (others int) {
	old := s.held
	for i, f := range s.slots {
		v := &f.Packet.Verdict
		switch {
		case i >= old && share > 0 && i%share == 0:
			*v = wire.Verdict{Kind: wire.Taken, Queue: queueNamed("other")}
			others++
		case *buffers > 0:
			*buffers--
			*v = wire.Verdict{Kind: wire.Taken, Queue: r}
		default:
			*v = wire.Verdict{Kind: wire.Busy, Queue: r}
		}
	}
	busy := s.rs.count(s.slots[:], old, func() time.Time { return s.now })
	s.rs.hold(s.slots[:], s.now)
	s.held = busy
	if busy == len(s.slots) && s.rs.slow(backlog, s.now) != nil {
		s.slow += busy / 2
		s.held -= busy / 2
	}
	return others
}

// A receiver that takes a few buffers a second, or none, gives up frames as soon as they keep others waiting, and
// others get their frames; not one that only pauses, nor one beside which there is no other.
func TestSlowReceivers(t *testing.T) {
	for _, c := range []struct {
		name    string
		share   int // each so-manieth frame is for another receiver; 0: none is
		backlog int
		buffers func(ms int) int // that the receiver posts in this millisecond
		slow    bool
	}{
		{"none", 2, 512, func(int) int { return 0 }, true},
		{"50 a second", 2, 512, func(ms int) int { return one(ms%20 == 0) }, true},
		{"1,000 a second", 2, 512, func(int) int { return 1 }, true},
		{"50 a second, nothing behind", 2, 0, func(ms int) int { return one(ms%20 == 0) }, true},
		{"alone, 50 a second", 0, 512, func(ms int) int { return one(ms%20 == 0) }, false},
		{"alone, none", 0, 512, func(int) int { return 0 }, false},
		{"pauses of 100 ms", 2, 512, func(ms int) int { return 100 * one(ms%1000 < 900) }, false},
		{"alone, pauses of 100 ms", 0, 512, func(ms int) int { return 100 * one(ms%1000 < 900) }, false},
		{"pauses of 100 ms, few to others", 30, 512, func(ms int) int { return 100 * one(ms%1000 < 900) }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSim()
			buffers, others := 0, 0
			for ms := range 5000 {
				buffers = min(buffers+c.buffers(ms), 256)
				for range 10 {
					others += s.round(queueNamed("r"), &buffers, c.share, c.backlog)
				}
				s.now = s.now.Add(time.Millisecond)
			}
			if got := s.slow > 0; got != c.slow {
				t.Errorf("%d frames given up", s.slow)
			}
			if c.slow && others < 4*5000 { // of 16 each round; without giving up there are 16 in all
				t.Errorf("%d frames went to the other", others)
			}
			if len(s.rs.known) > 2 {
				t.Errorf("%d receivers are known", len(s.rs.known))
			}
		})
	}
}

func one(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

// What a sender knows of receivers is bounded, and what is held is not forgotten.
func TestReceiversAreBounded(t *testing.T) {
	s := newSim()
	s.slots[0].Packet.Verdict = wire.Verdict{Kind: wire.Busy, Queue: queueNamed("held")}
	for i := range 1000 {
		s.slots[1].Packet.Verdict = wire.Verdict{Kind: wire.Taken, Queue: queueNamed(fmt.Sprint(i))}
		s.rs.count(s.slots[:2], 0, func() time.Time { return s.now })
		s.rs.hold(s.slots[:2], s.now)
		s.now = s.now.Add(time.Millisecond)
	}
	if n := len(s.rs.known); n != maxReceivers {
		t.Errorf("%d are known", n)
	}
	// One that is forgotten for a frame behind it, in the batch in which it turns busy, is known again.
	s.slots[0].Packet.Verdict = wire.Verdict{Kind: wire.Busy, Queue: s.rs.known[1].queue}
	for i := range maxReceivers {
		s.slots[1].Packet.Verdict = wire.Verdict{Kind: wire.Taken, Queue: queueNamed(fmt.Sprint("new", i))}
		s.slots[2].Packet.Verdict = wire.Verdict{Kind: wire.Busy, Queue: queueNamed("held")}
		s.rs.count(s.slots[:3], 0, func() time.Time { return s.now })
		s.rs.hold(s.slots[:3], s.now)
		s.slots[0].Packet.Verdict.Queue = s.rs.known[(i+1)%maxReceivers].queue
		s.now = s.now.Add(time.Millisecond)
	}
	if r := s.rs.of(queueNamed("held"), nil); r.held != 1 || r.waited < 0.5 {
		t.Errorf("%+v", r)
	}
}

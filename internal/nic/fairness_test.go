package nic

import (
	"fmt"
	"testing"
	"time"

	"vnic.dev/vnic/internal/wire"
)

type queueNamed string

func (queueNamed) Arm(wire.Waker) bool { return true }
func (queueNamed) Disarm(wire.Waker)   {}

// sim simulates a sender with a ring of 256 frames, held ones included, and two receivers: "the receiver"
// (simReceiver), whose buffers a behaviour posts, and "the other" (simOther), which takes every frame at once.
type sim struct {
	rs   receivers
	now  time.Time
	ring []wire.Waitable
	size int
	held int

	slots   [32]*TxFrame
	buffers int // free buffers of the receiver
	rest    int // frames that the other took
	taken   int // frames that the receiver took
	slow    int // frames to the receiver that the sender gave up
}

const (
	simReceiver = queueNamed("r")
	simOther    = queueNamed("other")
	simStep     = 100 * time.Microsecond
)

func newSim() *sim {
	s := &sim{now: time.Unix(1000, 0), size: 256}
	for i := range s.slots {
		s.slots[i] = &TxFrame{}
	}
	return s
}

// round sends held frames, and those from the ring for which there are slots, does the work of Sender.settle, and
// reports whether it took frames from the ring or gave up held ones.
func (s *sim) round() (some bool) {
	old := s.held
	n := min(len(s.slots)-old, len(s.ring))
	for i, q := range s.ring[:n] {
		s.slots[old+i].Packet.Verdict.Queue = q
	}
	s.ring = s.ring[n:]
	frames := s.slots[:old+n]
	for _, f := range frames {
		v := &f.Packet.Verdict
		switch {
		case v.Queue == simOther:
			v.Kind = wire.Taken
			s.rest++
		case s.buffers > 0:
			v.Kind = wire.Taken
			s.buffers--
			s.taken++
		default:
			v.Kind = wire.Busy
		}
	}
	s.held = s.rs.count(frames, old, func() time.Time { return s.now })
	if s.held == 0 && len(s.rs.busy) == 0 {
		return n > 0
	}
	s.rs.hold(frames, old, s.now)
	if all := s.held == len(s.slots); len(frames) == len(s.slots) && s.rs.mayBeSlow(all) {
		full := RingFull(s.held+len(s.ring), s.size)
		if slow := s.rs.slow(len(s.ring), full && all, s.now); slow != nil {
			give := max(0, slow.held-len(s.slots)/slowKeeps)
			s.slow += give
			s.held -= give
			slow.held -= give
			some = true
		}
	}
	for i := range s.held {
		s.slots[i].Packet.Verdict.Queue = simReceiver
	}
	return some || n > 0
}

type behaviour struct {
	each    int                    // every each-th frame goes to the receiver; 0: none
	sends   int                    // frames a second; 0: 20 in each step, as far as the ring has room
	buffers func(step int) (n int) // number of buffers that the receiver posts in a step
}

func (s *sim) run(b behaviour, first, steps int) {
	due, n := 0.0, 0
	for step := first; step < first+steps; step++ {
		s.buffers = min(s.buffers+b.buffers(step), 255)
		due += float64(b.sends) * simStep.Seconds()
		if b.sends == 0 {
			due = 20
		}
		for some := true; some; {
			for ; due >= 1 && s.held+len(s.ring) < s.size; due-- {
				if n++; b.each > 0 && n%b.each == 0 {
					s.ring = append(s.ring, simReceiver)
				} else {
					s.ring = append(s.ring, simOther)
				}
			}
			some = s.round()
		}
		due = min(due, 20)
		s.now = s.now.Add(simStep)
	}
}

// perSecond returns a function for behaviour.buffers that posts n buffers a second.
func perSecond(n int) func(step int) int {
	const steps = int(time.Second / simStep)
	return func(step int) int { return (step+1)*n/steps - step*n/steps }
}

// pausing is perSecond, but the function posts no buffers in the last ms milliseconds of each second.
func pausing(n, ms int) func(step int) int {
	return func(step int) int {
		if step%10_000 >= 10*(1000-ms) {
			return 0
		}
		return perSecond(n)(step)
	}
}

// In the cases with slow, the sender gives up frames to the receiver, so that the other one gets most of the frames to
// it; in the others it gives up none.
func TestSlowReceivers(t *testing.T) {
	for _, c := range []struct {
		name string
		behaviour
		slow bool
	}{
		{"none", behaviour{each: 2, buffers: perSecond(0)}, true},
		{"50 a second", behaviour{each: 2, buffers: perSecond(50)}, true},
		{"1,000 a second", behaviour{each: 2, buffers: perSecond(1000)}, true},
		{"3,000 a second", behaviour{each: 2, buffers: perSecond(3000)}, true},
		{"1,000 a second, of a tenth", behaviour{each: 10, buffers: perSecond(1000)}, true},
		{"1,000 a second, of 100,000", behaviour{each: 2, sends: 100_000, buffers: perSecond(1000)}, true},
		{"10 a second, of 100", behaviour{each: 2, sends: 200, buffers: perSecond(10)}, true},
		{"6,000 a second", behaviour{each: 2, buffers: perSecond(6000)}, false},
		{"100,000 a second", behaviour{each: 2, buffers: perSecond(100_000)}, false},
		{"100,000 a second, of a tenth", behaviour{each: 10, buffers: perSecond(100_000)}, false},
		{"100,000 a second in bursts", behaviour{each: 2, buffers: func(step int) int { return 250 * one(step%25 == 0) }},
			false},
		{"more than half", behaviour{each: 2, sends: 3400, buffers: perSecond(1000)}, false},
		{"more than half of little", behaviour{each: 2, sends: 340, buffers: perSecond(100)}, false},
		{"more than half of less", behaviour{each: 2, sends: 34, buffers: perSecond(10)}, false},
		{"more than half of a tenth", behaviour{each: 10, sends: 17_000, buffers: perSecond(1000)}, false},
		{"alone, none", behaviour{each: 1, buffers: perSecond(0)}, false},
		{"alone, 50 a second", behaviour{each: 1, buffers: perSecond(50)}, false},
		{"alone, 1,000 a second", behaviour{each: 1, buffers: perSecond(1000)}, false},
		{"alone, pauses of 100 ms", behaviour{each: 1, buffers: pausing(100_000, 100)}, false},
		{"pauses of 100 ms", behaviour{each: 2, buffers: pausing(100_000, 100)}, false},
		{"pauses of 100 ms, few to others", behaviour{each: 1, buffers: pausing(100_000, 100)}, false},
		{"pauses of 100 ms, a slow sender", behaviour{each: 2, sends: 4000, buffers: pausing(100_000, 100)}, false},
		{"pauses of 300 ms, a slow sender", behaviour{each: 2, sends: 3000, buffers: pausing(100_000, 300)}, false},
		{"pauses of 100 ms, much to others", behaviour{each: 20, buffers: pausing(100_000, 100)}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, seconds := newSim(), 1
			if c.sends > 0 && c.sends < 1000 {
				seconds = 20
			}
			s.run(c.behaviour, 0, seconds*10_000)
			if got := s.slow > 0; got != c.slow {
				t.Errorf("%d frames given up, %d taken, %d went to the other", s.slow, s.taken, s.rest)
			}
			// If the receiver is slow, the other one gets at least nine tenths of the frames to it.
			most := seconds * 10_000 * 20 * (c.each - 1) / c.each
			if c.sends > 0 {
				most = seconds * c.sends * (c.each - 1) / c.each
			}
			if c.slow && s.rest < most*9/10 {
				t.Errorf("%d frames of %d went to the other", s.rest, most)
			}
			if len(s.rs.known) > 2 {
				t.Errorf("%d receivers are known", len(s.rs.known))
			}
		})
	}
}

// After some seconds at most, traffic before the present behaviour does not change which receiver is slow.
func TestSlowReceiversByTime(t *testing.T) {
	all := func(int) int { return 255 }
	for _, c := range []struct {
		name  string
		first behaviour
		idle  time.Duration
		then  behaviour
		from  int // for how many milliseconds the second behaviour runs before the second that the test judges
		slow  bool
	}{
		{"others had much, then 50 a second", behaviour{sends: 200_000, buffers: all}, 0,
			behaviour{each: 2, buffers: perSecond(50)}, 0, true},
		{"others had much, then 1,000 a second", behaviour{sends: 200_000, buffers: all}, 0,
			behaviour{each: 2, buffers: perSecond(1000)}, 0, true},
		{"it had little, then 1,000 a second of much", behaviour{each: 2, sends: 200, buffers: all}, 0,
			behaviour{each: 2, buffers: perSecond(1000)}, 0, true},
		{"fast, and then not", behaviour{each: 2, buffers: all}, 0,
			behaviour{each: 2, buffers: perSecond(1000)}, 3100, true},
		{"slow, and then not", behaviour{each: 2, buffers: perSecond(1000)}, 0,
			behaviour{each: 2, buffers: perSecond(100_000)}, 100, false},
		{"slow, and then not so much", behaviour{each: 2, buffers: perSecond(1000)}, 0,
			behaviour{each: 2, buffers: perSecond(20_000)}, 400, false},
		{"others had much, then 150 a second of 400", behaviour{sends: 200_000, buffers: all}, 0,
			behaviour{each: 2, sends: 800, buffers: perSecond(150)}, 2500, true},
		{"it had enough, then less of much", behaviour{each: 2, sends: 250, buffers: perSecond(100)}, 0,
			behaviour{each: 2, buffers: perSecond(1000)}, 200, true},
		{"alone by now", behaviour{each: 2, sends: 200, buffers: all}, 1100 * time.Millisecond,
			behaviour{each: 1, buffers: perSecond(50)}, 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSim()
			s.run(c.first, 0, 20_000)
			s.now = s.now.Add(c.idle)
			mid := 10 * c.from
			s.run(c.then, 0, mid)
			given, rest := s.slow, s.rest
			s.run(c.then, mid, 10_000)
			given, rest = s.slow-given, s.rest-rest
			most := 10_000 * 20 / 2
			if c.then.sends > 0 {
				most = c.then.sends / 2
			}
			// Until the receiver is found slow, the other one gets fewer frames: 85 % are enough.
			if (given > 0) != c.slow || c.slow && rest < most*85/100 {
				t.Errorf("%d frames given up, %d went to the other", given, rest)
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

// A Sender keeps the state of at most maxReceivers receivers, and does not lose the state of a receiver with a held
// frame.
func TestReceiversAreBounded(t *testing.T) {
	s := newSim()
	s.slots[0].Packet.Verdict = wire.Verdict{Kind: wire.Busy, Queue: queueNamed("held")}
	for i := range 1000 {
		s.slots[1].Packet.Verdict = wire.Verdict{Kind: wire.Taken, Queue: queueNamed(fmt.Sprint(i))}
		s.rs.count(s.slots[:2], 0, func() time.Time { return s.now })
		s.rs.hold(s.slots[:2], 0, s.now)
		s.now = s.now.Add(time.Millisecond)
	}
	if n := len(s.rs.known); n != maxReceivers {
		t.Errorf("%d are known", n)
	}
	// A receiver that becomes busy in a batch may lose its state to that of a later frame; hold makes it again.
	s.slots[0].Packet.Verdict = wire.Verdict{Kind: wire.Busy, Queue: s.rs.known[1].queue}
	for i := range maxReceivers {
		s.slots[1].Packet.Verdict = wire.Verdict{Kind: wire.Taken, Queue: queueNamed(fmt.Sprint("new", i))}
		s.slots[2].Packet.Verdict = wire.Verdict{Kind: wire.Busy, Queue: queueNamed("held")}
		s.rs.count(s.slots[:3], 0, func() time.Time { return s.now })
		s.rs.hold(s.slots[:3], 0, s.now)
		s.slots[0].Packet.Verdict.Queue = s.rs.known[(i+1)%maxReceivers].queue
		s.now = s.now.Add(time.Millisecond)
	}
	if r := s.rs.find(queueNamed("held"), nil); r.held != 1 || r.waited < 0.5 {
		t.Errorf("%+v", r)
	}
}

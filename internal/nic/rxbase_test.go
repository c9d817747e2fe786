package nic_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
)

// waitRing is an RxBase with a model that only makes senders wait.
type waitRing struct {
	nic.RxBase
	buffers bool // there are buffers: AwaitBuffers returns false
	moved   bool // AwaitBuffers wakes all waiters
	stopped []error
}

func (q *waitRing) AwaitBuffers() bool {
	if q.moved {
		q.WakeAll()
	}
	return !q.buffers
}

func (q *waitRing) Buffers() int { return 0 }

func (q *waitRing) Stopped(err error) {
	q.Lock() // Stopped is called without the lock
	defer q.Unlock()
	q.stopped = append(q.stopped, err)
}

func (q *waitRing) locked(f func()) {
	q.Lock()
	defer q.Unlock()
	f()
}

func newWaitRing() *waitRing {
	q := new(waitRing)
	q.Init(q)
	return q
}

type wakes int

func (w *wakes) Wake() { *w++ }

// WakeAll and Fail wake each sender that waits, once, after the lock is released.
func TestRxBaseWakesWhoeverWaits(t *testing.T) {
	q := newWaitRing()
	var a, b wakes
	expect := func(what string, wantA, wantB wakes, waiting bool) {
		t.Helper()
		if a != wantA || b != wantB || q.Waiting() != waiting {
			t.Errorf("%s: woken %d and %d times, waiting %v", what, a, b, q.Waiting())
		}
	}
	q.buffers = true
	if q.Arm(&a) {
		t.Error("let wait, with buffers there")
	}
	expect("buffers", 0, 0, false)
	q.buffers = false
	if !q.Arm(&a) || !q.Arm(&b) {
		t.Error("not let wait")
	}
	q.Disarm(&b)
	q.Disarm(&b)
	expect("armed", 0, 0, true)
	q.locked(func() {
		q.WakeAll()
		expect("under the lock", 0, 0, false)
	})
	expect("woken", 1, 0, false)
	q.Disarm(&a)
	expect("disarmed too late", 1, 0, false)
	if !q.Arm(&a) {
		t.Error("not let wait")
	}
	q.moved = true
	if !q.Arm(&b) {
		t.Error("not let wait")
	}
	expect("another place", 2, 0, true)
	first := errors.New("first")
	q.locked(func() {
		if !q.Fail(first) || q.Fail(errors.New("second")) || q.Err() != first {
			t.Error("it fails once")
		}
		if len(q.stopped) != 0 {
			t.Error("told under the lock")
		}
	})
	expect("failed", 2, 1, false)
	if len(q.stopped) != 1 || q.stopped[0] != first {
		t.Errorf("told of %v", q.stopped)
	}
	if q.Arm(&a) {
		t.Error("let wait for a queue that has failed")
	}
	q.locked(q.Restart)
	if !q.Arm(&a) {
		t.Error("not let wait after a new start")
	}
	expect("restarted", 2, 1, true)
}

// countRing is an RxBase with a model that only counts buffers, each for one frame.
type countRing struct {
	nic.RxBase
	buffers int
	short   int // number of buffers when take last found too few
}

func newCountRing() *countRing {
	q := new(countRing)
	q.Init(q)
	return q
}

func (q *countRing) AwaitBuffers() bool { return q.buffers <= q.short }
func (q *countRing) Buffers() int       { return q.buffers }
func (q *countRing) Stopped(error)      {}

func (q *countRing) post(n int) {
	q.Lock()
	defer q.Unlock()
	q.buffers += n
	q.WakeNext()
}

func (q *countRing) locked(f func()) {
	q.Lock()
	defer q.Unlock()
	f()
}

// take takes up to n buffers, or, if whole is set, n or none. It returns how many it took.
func (q *countRing) take(n int, whole bool) int {
	q.Lock()
	defer q.Unlock()
	if n > q.buffers {
		if q.short = q.buffers; whole {
			return 0
		}
		n = q.buffers
	}
	q.buffers -= n
	return n
}

// portQueue is a sending port's queue that always has frames. Wake appends it to ready.
type portQueue struct {
	port  uint32
	ready *[]*portQueue
	took  int
}

func (s *portQueue) PortSerial() uint32 { return s.port }
func (s *portQueue) Wake()              { *s.ready = append(*s.ready, s) }

// round does what a Sender does once it is woken: it sends up to 32 frames, and waits again if it may.
func (s *portQueue) round(q *countRing) {
	n := q.take(32, false)
	s.took += n
	batch := make([]*wire.Packet, 32)
	for i := range batch {
		batch[i] = &wire.Packet{From: s.port, Verdict: wire.Verdict{Kind: wire.Busy}}
		if i < n {
			batch[i].Verdict.Kind = wire.Taken
		}
	}
	q.locked(func() { q.Delivered(batch) })
	q.Disarm(s)
	if !q.Arm(s) {
		s.Wake()
	}
}

func sumOf(qs []*portQueue) (n int) {
	for _, s := range qs {
		n += s.took
	}
	return n
}

// Ports get about equal shares of a receiver's buffers, whatever number of queues each waits with.
//
// Invariant: nic: Ports that wait for a receiver get about equal shares of its buffers.
func TestPortsTakeTurns(t *testing.T) {
	for _, posted := range []int{1, 8, 32, 48, 200, 1000} {
		t.Run(fmt.Sprint(posted), func(t *testing.T) {
			q := newCountRing()
			var ready []*portQueue
			ports := map[int][]*portQueue{}
			for i, n := range []int{1, 16, 3} {
				for range n {
					s := &portQueue{port: uint32(i + 1), ready: &ready}
					ports[n] = append(ports[n], s)
					testkit.Equal(t, "it may wait", q.Arm(s), true)
				}
			}
			const rounds = 480
			for round := range rounds {
				q.post(posted)
				for ; len(ready) > 0; ready = ready[1:] {
					ready[0].round(q)
				}
				testkit.Equal(t, "buffers left", q.buffers, 0)
				fair := (round + 1) * posted / 3
				for n, qs := range ports {
					if got := sumOf(qs); got < fair-max(32, posted) || got > fair+max(32, posted) {
						t.Fatalf("after %d buffers the port with %d queues took %d", (round+1)*posted, n, got)
					}
				}
			}
			for n, qs := range ports {
				fair := sumOf(qs) / len(qs)
				for i, s := range qs {
					if s.took < fair/2 || s.took > 2*fair {
						t.Errorf("queue %d of %d took %d of %d", i, n, s.took, fair*len(qs))
					}
				}
			}
		})
	}
}

// While a port has a turn, its other queues get none. When the turn has ended, the next queue gets one if there are
// buffers.
//
// Invariant: nic: No sender stays asleep beside free buffers once other ports' turns have ended,
// even if a woken one does not use them.
func TestTurnsPassOn(t *testing.T) {
	q := newCountRing()
	var ready []*portQueue
	var qs []*portQueue
	for range 4 {
		s := &portQueue{port: 1, ready: &ready}
		qs = append(qs, s)
		testkit.Equal(t, "it may wait", q.Arm(s), true)
	}
	woken := func(what string, want ...*portQueue) {
		t.Helper()
		if !slices.Equal(ready, want) {
			t.Errorf("%s: %d are woken, want %d, or others", what, len(ready), len(want))
		}
		ready = ready[:0]
	}
	q.post(2)
	q.post(1)
	woken("buffers", qs[0])
	q.Disarm(qs[0])
	woken("it has sent nothing", qs[1])
	testkit.Equal(t, "a frame of four", q.take(4, true), 0)
	q.Disarm(qs[1])
	woken("it needs more", qs[2])
	testkit.Equal(t, "frames", q.take(3, false), 3)
	testkit.Equal(t, "it may wait", q.Arm(qs[2]), true)
	woken("there are none left")
	q.Disarm(qs[3])
	q.post(8)
	woken("the other has gone", qs[2])
	testkit.Equal(t, "it waits behind the other, though there are buffers", q.Arm(qs[1]), true)
	woken("one has a turn")
	q.locked(q.WakeAll)
	woken("all", qs[1])
	testkit.Equal(t, "it may wait with buffers there", q.Arm(qs[1]), false)
	q.Disarm(qs[2])
	q.take(8, false)
	q.short = 0
	for range 2 {
		testkit.Equal(t, "it may wait, and is listed once", q.Arm(qs[0]), true)
	}
	q.locked(func() { q.Fail(errors.New("broken")) })
	woken("it fails", qs[0])
	testkit.Equal(t, "senders wait", q.Waiting(), false)
}

// A port that is more than 128 frames ahead of a port that has a turn waits beside free buffers until that turn ends.
//
// Invariant: nic: No sender stays asleep beside free buffers once other ports' turns have ended,
// even if a woken one does not use them.
func TestPortAheadWaitsForTheOthersTurn(t *testing.T) {
	q := newCountRing()
	var ready []*portQueue
	ahead, behind := &portQueue{port: 1, ready: &ready}, &portQueue{port: 2, ready: &ready}
	woken := func(what string, want ...*portQueue) {
		t.Helper()
		if !slices.Equal(ready, want) {
			t.Errorf("%s: %d are woken, want %d, or others", what, len(ready), len(want))
		}
		ready = ready[:0]
	}
	admitted := func(what string, port uint32, want bool) {
		t.Helper()
		q.locked(func() { testkit.Equal(t, what, q.Admit(port), want) })
	}
	admitted("nobody waits", 1, true)
	testkit.Equal(t, "it may wait", q.Arm(behind), true)
	admitted("from now on its frames count", 1, true)
	batch := make([]*wire.Packet, 129)
	for i := range batch {
		batch[i] = &wire.Packet{From: 1, Verdict: wire.Verdict{Kind: wire.Taken}}
	}
	q.locked(func() { q.Delivered(batch) })
	admitted("there are no buffers for the other", 1, true)
	testkit.Equal(t, "it may wait", q.Arm(ahead), true)
	q.post(64)
	woken("buffers for two turns", behind)
	q.Disarm(ahead)
	admitted("the other's turn", 1, false)
	admitted("its own", 2, true)
	testkit.Equal(t, "it waits though there are buffers", q.Arm(ahead), true)
	testkit.Equal(t, "a frame of 65", q.take(65, true), 0)
	q.Disarm(behind)
	woken("who has not looked may need fewer", ahead)
	admitted("nobody has a turn but itself", 1, true)
	q.take(64, false)
	q.Disarm(ahead)
	testkit.Equal(t, "it may wait", q.Arm(behind), true)
	q.locked(func() { q.short, q.buffers = 0, 64 }) // the driver's kick comes later
	admitted("the other waits for buffers that are there", 1, false)
	woken("before the kick", behind)
	q.Disarm(behind)
	admitted("the other has had its turn", 1, true)
}

package nic_test

import (
	"errors"
	"testing"

	"vnic.dev/vnic/nic"
)

// waitRing is a device model's receive queue, as far as waiting goes.
type waitRing struct {
	nic.RxBase
	buffers bool
	moved   bool // whoever waits waits for another place from now on
	stopped []error
}

func (q *waitRing) AwaitBuffers() bool {
	if q.moved {
		q.WakeAll()
	}
	return !q.buffers
}

func (q *waitRing) Stopped(err error) {
	q.Lock() // it is told without the lock
	defer q.Unlock()
	q.stopped = append(q.stopped, err)
}

// locked calls f under the lock.
func (q *waitRing) locked(f func()) {
	q.Lock()
	defer q.Unlock()
	f()
}

// newWaitRing makes one without buffers.
func newWaitRing() *waitRing {
	q := new(waitRing)
	q.Init(q)
	return q
}

type wakes int

func (w *wakes) Wake() { *w++ }

// Senders wait while there are too few buffers and the queue runs; each is woken once, after the
// lock is free.
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

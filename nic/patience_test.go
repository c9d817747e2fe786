package nic_test

import (
	"testing"
	"time"

	"vnic.dev/vnic/nic"
	"vnic.dev/vnic/wire"
)

// receiver is a Waitable without buffers, until it has some.
type receiver struct {
	armed map[wire.Waker]bool
	posts bool
}

func (r *receiver) Arm(w wire.Waker) bool {
	if r.posts {
		return false
	}
	r.armed[w] = true
	return true
}
func (r *receiver) Disarm(w wire.Waker) { delete(r.armed, w) }
func (r *receiver) wake() {
	for w := range r.armed {
		w.Wake()
	}
	clear(r.armed)
}

func newReceiver() *receiver { return &receiver{armed: map[wire.Waker]bool{}} }

// A receiver that was waited for in vain is not waited for again and again, each time for longer,
// until it gets buffers; and that holds for each of several.
func TestPatience(t *testing.T) {
	p := nic.Patience{Limit: time.Second}
	start := time.Unix(1000, 0)
	at := func(d time.Duration) time.Time { return start.Add(d) }
	r := newReceiver()
	if !p.ShouldWait(r, nic.Window{From: start, To: at(999 * time.Millisecond)}) {
		t.Error("not waited for in the first second")
	}
	if p.ShouldWait(r, nic.Window{From: start, To: at(time.Second)}) {
		t.Error("waited for for more than a second")
	}
	if p.ShouldWait(r, nic.Window{From: at(time.Second), To: at(time.Second)}) ||
		p.ShouldWait(r, nic.Window{From: at(2 * time.Second), To: at(2999 * time.Millisecond)}) {
		t.Error("no penalty")
	}
	if !p.ShouldWait(r, nic.Window{From: at(3 * time.Second), To: at(3 * time.Second)}) {
		t.Error("the penalty does not end after two seconds")
	}
	if p.ShouldWait(r, nic.Window{From: at(3 * time.Second), To: at(4 * time.Second)}) ||
		p.ShouldWait(r, nic.Window{From: at(7900 * time.Millisecond), To: at(7900 * time.Millisecond)}) {
		t.Error("the second penalty is no longer than the first")
	}
	other := newReceiver()
	if !p.ShouldWait(other, nic.Window{From: at(5 * time.Second), To: at(5 * time.Second)}) {
		t.Error("another receiver is not waited for")
	}
	r.wake()
	if !p.ShouldWait(r, nic.Window{From: at(7 * time.Second), To: at(7 * time.Second)}) {
		t.Error("a penalty for one that got buffers")
	}
	var rs []*receiver
	for range 6 { // more than are kept
		rs = append(rs, newReceiver())
		p.ShouldWait(rs[len(rs)-1], nic.Window{From: start, To: at(10 * time.Second)})
	}
	n := 0
	for _, r := range rs {
		n += len(r.armed)
	}
	if n != 4 {
		t.Errorf("%d penalties are kept", n)
	}
	p.Reset()
	for _, r := range append(rs, r, other) {
		if len(r.armed) != 0 {
			t.Error("armed still")
		}
	}
}

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

// A receiver that was waited for in vain is not waited for again and again, each time for longer, until it gets buffers; and
// that holds for each of several.
func TestPatience(t *testing.T) {
	p := nic.Patience{Limit: time.Second}
	start := time.Unix(1000, 0)
	at := func(d time.Duration) time.Time { return start.Add(d) }
	r := newReceiver()
	if !p.Worth(r, start, at(999*time.Millisecond)) {
		t.Error("not worth the first second")
	}
	if p.Worth(r, start, at(time.Second)) {
		t.Error("worth more than a second")
	}
	if p.Worth(r, at(time.Second), at(time.Second)) || p.Worth(r, at(2*time.Second), at(2999*time.Millisecond)) {
		t.Error("no grudge")
	}
	if !p.Worth(r, at(3*time.Second), at(3*time.Second)) {
		t.Error("the grudge does not end after two seconds")
	}
	if p.Worth(r, at(3*time.Second), at(4*time.Second)) || p.Worth(r, at(7900*time.Millisecond), at(7900*time.Millisecond)) {
		t.Error("the second grudge is no longer than the first")
	}
	other := newReceiver()
	if !p.Worth(other, at(5*time.Second), at(5*time.Second)) {
		t.Error("another receiver is not worth it")
	}
	r.wake()
	if !p.Worth(r, at(7*time.Second), at(7*time.Second)) {
		t.Error("a grudge against one that got buffers")
	}
	var rs []*receiver
	for range 6 { // more than are kept
		rs = append(rs, newReceiver())
		p.Worth(rs[len(rs)-1], start, at(10*time.Second))
	}
	n := 0
	for _, r := range rs {
		n += len(r.armed)
	}
	if n != 4 {
		t.Errorf("%d grudges are kept", n)
	}
	p.Forgive()
	for _, r := range append(rs, r, other) {
		if len(r.armed) != 0 {
			t.Error("armed still")
		}
	}
}

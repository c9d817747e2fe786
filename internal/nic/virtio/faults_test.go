package virtio_test

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/nic/nictest"
	"vnic.dev/vnic/internal/testkit"
)

// called reports whether the device has fired ring i's call eventfd since the eventfd was last read.
func (g *suiteGuest) called(i int) bool {
	var b [8]byte
	_, err := unix.Read(g.calls[i], b[:])
	return err == nil
}

// The driver asks only for the first interrupt: then the used index has passed the driver's event index.
//
// Invariant: nic: After a dropped interrupt the next one is raised.
func TestLostCallIsMadeWithTheNextFrame(t *testing.T) {
	w := newWorld(t)
	w.B.Post(0, 3)
	fs := []nictest.Frame{tcp(w.A, w.B, 10), tcp(w.A, w.B, 20), tcp(w.A, w.B, 30)}
	if w.B.rings[0].EnableCall() {
		t.Fatal("a frame that nobody sent")
	}
	w.B.Port().LoseInterrupt()
	for i, called := range []bool{false, true, false} {
		w.A.Send(0, fs[i])
		testkit.Equal(t, "called", w.B.called(0), called)
	}
	for i := range fs {
		nictest.Arrives(t, w.B, 0, &fs[i])
	}
	testkit.Equal(t, "lost", w.B.Port().Faults().LostInterrupts, 1)
	// After a dropped interrupt for a transmit completion, the next completion raises one.
	w.B.Post(0, 2)
	w.A.rings[1].EnableCall()
	w.A.called(1)
	w.A.Port().LoseInterrupt()
	w.A.Queue(0, fs[0])
	nictest.Arrives(t, w.B, 0, &fs[0])
	testkit.Eventually(t, "a lost call", func() bool { return w.A.Port().Faults().LostInterrupts == 1 })
	w.A.Queue(0, fs[1])
	testkit.Eventually(t, "the next call", func() bool { return w.A.called(1) })
	w.A.Sent(0)
	nictest.Arrives(t, w.B, 0, &fs[1])
}

// Invariant: nic: A NIC that takes no buffers for a while, or completes late, loses no unicast
// frame as long as its senders' patience lasts and they do not find it slow.
func TestStopShowsLateCompletions(t *testing.T) {
	const n = 40
	w := newWorld(t)
	w.A.Port().DelayCompletions(nic.MaxCompletionDelay)
	w.B.Post(0, n)
	before := w.A.usedIdx(1)
	for range n {
		w.A.Queue(0, tcp(w.A, w.B, 100))
	}
	for range n {
		w.B.Receive(0)
	}
	base := w.A.base(1)
	if used := w.A.usedIdx(1); used != before+n || base != used {
		t.Errorf("stopped at %d, %d given back, %d of them before", base, used, before)
	}
}

// With a polling thread, completions come no earlier than they are due.
//
// Invariant: nic: A NIC that takes no buffers for a while, or completes late, loses no unicast
// frame as long as its senders' patience lasts and they do not find it slow.
func TestPolledCompletionsComeLate(t *testing.T) {
	const delay = 20 * time.Millisecond
	w := newWorldWith(t, rawOptions{pairs: 3, mtu: 9000, p2p: true, pollers: newPollers(t, 1, false)})
	w.A.Port().DelayCompletions(delay)
	for range 3 {
		f := tcp(w.A, w.B, 100)
		w.B.Post(0, 1)
		start := time.Now()
		w.A.Send(0, f)
		if d := time.Since(start); d < delay {
			t.Errorf("completed after %v", d)
		}
		nictest.Arrives(t, w.B, 0, &f)
	}
}

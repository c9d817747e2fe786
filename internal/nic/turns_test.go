package nic_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/testkit"
)

func queuesOf(d *toy, n int, o nic.SenderOptions) (qs []*toyTx) {
	o.Space, o.Batch = d.tx.space, toyBatch
	for range n {
		q := d.newTx(o)
		q.keeps = true
		qs = append(qs, q)
	}
	return qs
}

// turnWaker is a nic.PortWaker that only records its wake.
type turnWaker struct {
	port  uint32
	woken bool
}

func (w *turnWaker) PortSerial() uint32 { return w.port }
func (w *turnWaker) Wake()              { w.woken = true }

// A sender that never sleeps looks for buffers before a waiting sender can run. As long as both have frames, about
// equal numbers of their frames arrive.
//
// Invariant: nic: While other ports wait, a sender that is awake takes little more than its port's
// share.
func TestAwakeSendersLeaveOthersTheirPart(t *testing.T) {
	for _, late := range []bool{false, true} {
		t.Run(fmt.Sprintf("late=%v", late), func(t *testing.T) {
			ds := toys(t, 3, patient)
			awake, waits, to := ds[0], ds[1], ds[2]
			const posts, posted = 150, 6
			for seq := range posts * posted {
				awake.sendTo(to, seq)
			}
			for seq := range posts * posted / 4 {
				waits.sendTo(to, seq)
			}
			round := func(d *toy) { testkit.Must(d.tx.sender.Round(false))(t) }
			w := &turnWaker{port: waits.port.Link().Serial()}
			round(waits)
			testkit.Equal(t, "it may wait", to.rx.Arm(w), true)
			had := func() (a, b int) { return len(awake.tx.done), len(waits.tx.done) }
			for range posts {
				to.rx.Lock()
				for range posted {
					to.rx.posted = append(to.rx.posted, newToyBuf())
				}
				if !late {
					to.rx.WakeNext()
				}
				to.rx.Unlock()
				round(awake)
				round(awake)
				to.rx.Lock()
				to.rx.WakeNext()
				to.rx.Unlock()
				for w.woken {
					w.woken = false
					round(waits)
					to.rx.Disarm(w)
					if len(waits.tx.ring) > len(waits.tx.done) && !to.rx.Arm(w) {
						w.Wake()
					}
				}
				round(awake)
				if a, b := had(); b < len(waits.tx.ring) && (b < a-128-2*toyBatch || a < b-128-2*toyBatch) {
					t.Fatalf("the one that is awake had %d frames, and the one that waits %d", a, b)
				}
				testkit.Equal(t, "buffers left", len(to.rx.posted), 0)
			}
			a, b := had()
			testkit.Equal(t, "frames of the one that waits", b, len(waits.tx.ring))
			testkit.Equal(t, "of the other", a, posts*posted-b)
		})
	}
}

// Receivers post exactly as many buffers as frames are sent to them, and each frame arrives unless its queue was
// stopped or its receiver was slow.
//
// Invariant: nic: No sender stays asleep beside free buffers once other ports' turns have ended,
// even if a woken one does not use them.
func TestTurnsLoseNoWake(t *testing.T) {
	for _, polled := range []bool{false, true} {
		t.Run(map[bool]string{false: "threads", true: "pollers"}[polled], func(t *testing.T) {
			// Longer than Eventually waits: when Patience ends, a Sender tries again, which would hide a lost wake.
			o := nic.SenderOptions{Patience: 2 * testkit.Patience}
			if polled {
				o.Pollers = testkit.Must(nic.NewPollers(2, false))(t)
				t.Cleanup(o.Pollers.Close)
			}
			for seed := range uint64(40) {
				turnsLoseNoWake(t, o, rand.New(rand.NewPCG(1, seed)))
			}
		})
	}
}

func turnsLoseNoWake(t *testing.T, o nic.SenderOptions, rnd *rand.Rand) {
	ds := toys(t, 4, o)
	from, to := ds[:2], ds[2:]
	const frames = 100 // of each queue
	qs := queuesOf(from[0], 1, o)
	qs = append(qs, queuesOf(from[1], 5, o)...)
	left := make([]int, len(to)) // buffers still to be posted
	stopped := uint64(0)         // frames given up because their queue stopped
	for i, q := range qs {
		d := from[min(i, 1)]
		for seq := range frames {
			r := rnd.IntN(len(to))
			left[r]++
			q.send(d.frame(to[r].mac, seq))
		}
		q.sender.Start(-1, false)
	}
	for left[0]+left[1] > 0 {
		r := rnd.IntN(len(to))
		n := min(left[r], 1+rnd.IntN(12))
		bufs := make([]toyBuf, n)
		for i := range bufs {
			bufs[i] = newToyBuf()
		}
		to[r].rx.post(bufs...)
		left[r] -= n
		if rnd.IntN(8) == 0 {
			q := qs[rnd.IntN(len(qs))].sender
			before := q.Stats()
			q.Stop()
			after := q.Stats()
			stopped += after.GaveUp - after.Slow - (before.GaveUp - before.Slow)
			q.Start(-1, false)
		}
	}
	var gaveUp, slow uint64 // slow: if a loaded machine posts buffers late, a Sender may find a receiver slow
	for _, q := range qs {
		testkit.Eventually(t, "each frame has come back", func() bool {
			q.mu.Lock()
			defer q.mu.Unlock()
			return len(q.done) == frames
		})
		q.sender.Stop()
		s := q.sender.Stats()
		gaveUp, slow = gaveUp+s.GaveUp, slow+s.Slow
	}
	testkit.Equal(t, "frames given up", gaveUp-slow, stopped)
	unused := 0
	for _, d := range to {
		testkit.Equal(t, "a sender waits", d.rx.Waiting(), false)
		unused += len(d.rx.posted)
	}
	testkit.Equal(t, "buffers left", unused, int(gaveUp))
}

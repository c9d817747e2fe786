package nic_test

import (
	"math/rand/v2"
	"testing"

	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/nic"
)

// queuesOf are several transmit queues of a NIC beside its first.
func queuesOf(d *toy, n int, o nic.SenderOptions) (qs []*toyTx) {
	o.Space, o.Batch = d.tx.space, toyBatch
	for range n {
		q := d.newTx(o)
		q.keeps = true
		qs = append(qs, q)
	}
	return qs
}

// Receivers post as many buffers as frames are sent to them, and no more, a few at a time: each frame arrives, but for
// those of queues that are stopped now and then. So none of the senders, which wait for two receivers, is left asleep
// beside a buffer.
//
// Invariant: nic: A wake that is not used leaves nobody asleep beside free buffers.
func TestTurnsLoseNoWake(t *testing.T) {
	for _, polled := range []bool{false, true} {
		t.Run(map[bool]string{false: "threads", true: "pollers"}[polled], func(t *testing.T) {
			o := nic.SenderOptions{Patience: 2 * testkit.Patience} // no retry at its end hides a wake that is lost
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
	left := make([]int, len(to)) // buffers to be posted
	stopped := uint64(0)         // frames that were given up as their queue stopped
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
	var gaveUp, slow uint64 // slow: a loaded machine posts so late
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

//go:build !race

package nic

import (
	"testing"
	"time"

	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
)

type waitable struct{ _ int }

func (*waitable) Arm(wire.Waker) bool { return true }
func (*waitable) Disarm(wire.Waker)   {}

// After ten rounds, receivers.count allocates nothing, with few receivers or more than maxReceivers, whose frames come
// in turn or in another order.
//
// Invariant: hot path: Nothing is allocated for a packet.
func TestReceiversAllocateNothing(t *testing.T) {
	now := func() time.Time { return time.Unix(1000, 0) }
	for _, n := range []int{1, 2, maxReceivers, 3 * maxReceivers} {
		var rs receivers
		queues, frames := make([]wire.Waitable, n), make([]*TxFrame, n)
		for i := range queues {
			queues[i], frames[i] = new(waitable), &TxFrame{}
		}
		step := 1
		round := func() {
			for i, f := range frames {
				f.Packet.Verdict = wire.Verdict{Kind: wire.Taken, Queue: queues[i*step%n]}
			}
			rs.count(frames, 0, now)
		}
		for range 10 {
			round()
		}
		for _, step = range []int{1, 5} { // in turn, and in another order
			testkit.Equal(t, "allocations of a round", testing.AllocsPerRun(100, round), 0)
		}
		if len(rs.known) != min(n, maxReceivers) || len(rs.index) != len(rs.known) {
			t.Errorf("%d receivers: %d known, %d in the index", n, len(rs.known), len(rs.index))
		}
		taken := 0
		for i, r := range rs.known {
			if r.place != i || rs.index[r.queue] != r {
				t.Errorf("%d receivers: %d is at %d", n, i, r.place)
			}
			taken += r.newTaken
		}
		if want := n * (10 + 2*101); n <= maxReceivers && taken != want {
			t.Errorf("%d receivers: %d frames counted of %d", n, taken, want)
		}
	}
}

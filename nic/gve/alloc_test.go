//go:build !race

package gve

import (
	"fmt"
	"testing"

	"vnic.dev/vnic/nic/nictest"
)

// The whole datapath, from a descriptor on one guest's transmit ring to a completion on the other's
// receive ring, split or not, on a metered flow, allocates nothing: neither do the workers, which
// AllocsPerRun counts too.
//
// Invariant: hot path: Nothing is allocated for a packet.
func TestPathAllocatesNothing(t *testing.T) {
	for _, c := range lanes {
		for _, device := range []bool{false, true} { // with its doorbells and interrupts
			t.Run(fmt.Sprint(c.payload, c.split, device), func(t *testing.T) {
				l := newLane(t, c.payload, c.split, device)
				l.meter()
				for range 100 {
					l.round()
				}
				if n := testing.AllocsPerRun(500, l.round); n != 0 {
					t.Fatalf("%d frames of %d bytes cost %v allocations", laneBatch, c.payload, n)
				}
				var tap nictest.Quiet
				for _, g := range []*suiteGuest{l.a, l.b} {
					g.Port().Link().SetTap(&tap)
				}
				for range 10 {
					l.round()
				}
				if n := testing.AllocsPerRun(100, l.round); n != 0 {
					t.Fatalf("%d frames of %d bytes cost %v allocations with a tap", laneBatch, c.payload, n)
				}
				if sent, came := tap.Seen(); sent < 100*laneBatch || came < 100*laneBatch {
					t.Errorf("the tap saw %d frames sent, %d received", sent, came)
				}
			})
		}
	}
}

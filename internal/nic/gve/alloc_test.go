//go:build !race

package gve

import (
	"fmt"
	"testing"

	"vnic.dev/vnic/internal/nic/nictest"
)

// The whole datapath, from a descriptor on one guest's transmit ring to a completion on the other's
// receive ring, split or not, in a counted flow, allocates nothing. AllocsPerRun counts the
// workers' allocations too.
//
// Invariant: hot path: Nothing is allocated for a packet.
func TestPathAllocatesNothing(t *testing.T) {
	for _, c := range streams {
		t.Run(fmt.Sprint(c.payload, c.split), func(t *testing.T) {
			l := newStream(t, c.payload, c.split)
			l.meter()
			nictest.StreamAllocatesNothing(t, l)
		})
	}
}

//go:build !race

package gve

import (
	"fmt"
	"testing"

	"vnic.dev/vnic/internal/nic/nictest"
)

// After some rounds, the path from a descriptor of one guest to a completion of the other, in a flow that a flow
// counter counts, allocates nothing.
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

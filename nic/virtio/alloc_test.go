//go:build !race

package virtio_test

import (
	"fmt"
	"testing"
)

// The whole datapath, from a chain on one guest's transmit ring to a used element on the other's receive ring, allocates
// nothing: neither do the workers, which AllocsPerRun counts too.
func TestPathAllocatesNothing(t *testing.T) {
	for _, payload := range []int{64, 1448, 65000} {
		t.Run(fmt.Sprint(payload), func(t *testing.T) {
			l := newLane(t, payload)
			for range 100 {
				l.round()
			}
			if n := testing.AllocsPerRun(500, l.round); n != 0 {
				t.Fatalf("%d frames of %d bytes cost %v allocations", laneBatch, payload, n)
			}
		})
	}
}

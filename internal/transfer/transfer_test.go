package transfer

import (
	"fmt"
	"testing"
)

var modes = []string{Devmem, Copy}

// Invariant: guest-images: A transfer of any size arrives.
func TestEveryByteArrives(t *testing.T) {
	w := newWorld(t, options{})
	sizes := []uint64{1, 2, 8, 63, 1447, 1448, 1449, 4095, 4096, 4097, 65535, 65536, 65537, stage - 1, stage, stage + 1,
		5<<20 + 12345}
	if testing.Short() {
		sizes = []uint64{1, 1449, 4097, stage + 1}
	}
	for i, mode := range modes {
		for _, v6 := range []bool{false, true} {
			for _, size := range sizes {
				t.Run(fmt.Sprintf("%s/v6=%v/%d", mode, v6, size), func(t *testing.T) {
					w := w.in(t)
					ra, rb := w.run(trial{mode: mode, v6: v6, size: size, seed: size + uint64(i)})
					if rb.Linear != 0 {
						t.Errorf("%d bytes came in host memory", rb.Linear)
					}
					if mode == Devmem && (rb.Frags == 0 || rb.Jobs == 0) || mode == Copy && (rb.Jobs == 0 || ra.Jobs == 0) {
						t.Errorf("sent %+v, received %+v", ra, rb)
					}
				})
			}
		}
	}
}

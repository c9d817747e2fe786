package transfer

import (
	"fmt"
	"sync/atomic"
	"testing"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
)

// Invariant: stack: Over loss, reordering and duplicates the right bytes arrive, and every page
// comes back.
func TestLossyLink(t *testing.T) {
	testkit.Slow(t)
	const seeds = 24
	size := uint64(1_500_000)
	if testing.Short() {
		size = 150_000
	}
	var lost, again atomic.Uint64
	t.Run("seed", func(t *testing.T) {
		for seed := range uint64(seeds) {
			t.Run(fmt.Sprint(seed), func(t *testing.T) {
				t.Parallel() // most of the time the subtests wait for timers
				w := newWorld(t, options{bad: lab.Impairment{Seed: seed << 8, Loss: 0.02, Reorder: 0.02}})
				for _, mode := range modes {
					x := trial{mode: mode, v6: seed%2 == 1, size: size + seed, seed: seed}
					if seed%4 == 0 {
						x.pages, x.size = 128, x.size/4 // few pages in mode devmem: B may drop data out of order
					}
					ra, _ := w.run(x)
					again.Add(ra.Retransmits)
				}
				for _, g := range []*guest{w.a, w.b} {
					lost.Add(g.port.Link().Counters().Drops[wire.DropLinkLoss])
				}
			})
		}
	})
	t.Logf("%d packets lost whole, %d segments sent again", lost.Load(), again.Load())
	if lost.Load() < seeds || again.Load() < seeds {
		t.Errorf("a good link: %d packets lost, %d segments sent again", lost.Load(), again.Load())
	}
}

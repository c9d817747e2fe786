package transfer

import (
	"testing"
	"time"

	"vnic.dev/vnic/internal/testkit"
)

func TestLateTokensRunThePoolDry(t *testing.T) {
	testkit.Slow(t)
	w := newWorld(t, options{})
	pages := w.b.leastPool()
	x := trial{mode: Devmem, size: 2 << 20, pages: pages, seed: 11}
	if _, got := w.run(x); got.Late != 0 {
		t.Errorf("%d tokens were late, and none was to be", got.Late)
	}
	testkit.OK(t, w.b.node.LateTokens(t.Context(), 20*time.Millisecond))
	was, wasDrops := w.b.dry()
	_, got := w.run(x)
	if unposted, drops := w.b.dry(); unposted == was && drops == wasDrops {
		t.Error("the pool was never dry")
	}
	if got.Late == 0 || got.Late > pages {
		t.Errorf("%d tokens were late at a time, of a pool of %d pages", got.Late, pages)
	}
	testkit.OK(t, w.b.node.LateTokens(t.Context(), 0))
	if _, got := w.run(x); got.Late != 0 {
		t.Errorf("%d tokens were late after the end of that", got.Late)
	}
	for _, by := range []time.Duration{-1, maxLate + 1} {
		testkit.ErrorSays(t, w.b.node.LateTokens(t.Context(), by), "0 to 10s")
	}
}

func TestLateTokensGoBackAtTheEnd(t *testing.T) {
	w := newWorld(t, options{})
	testkit.OK(t, w.b.node.LateTokens(t.Context(), maxLate))
	start := time.Now()
	_, got := w.run(trial{mode: Devmem, size: 1 << 20, pages: 1024, seed: 12})
	if took := time.Since(start); got.Late == 0 || took >= maxLate {
		t.Errorf("%d tokens were late, and the transfer took %v", got.Late, took)
	}
}

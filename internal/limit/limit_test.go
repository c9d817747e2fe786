package limit

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/testkit"
)

func TestLimitNamesWhoStillRan(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(g *Guests)
		want string
	}{
		"nothing": {func(*Guests) {}, "--timeout 1m0s: no guest ran"},
		"fetch": {func(g *Guests) { g.Stage("looking for QEMU and a kernel") },
			"--timeout 1m0s: no guest ran (stage: looking for QEMU and a kernel)"},
		"download": {func(g *Guests) {
			g.Stage("looking for QEMU and a kernel")
			g.Fetching(nil)(assets.Progress{Step: "download", What: "kernel", Done: 45, Total: 100})
		}, "--timeout 1m0s: no guest ran (stage: download kernel, 45 %)"},
		"build": {func(g *Guests) {
			g.Fetching(func(assets.Progress) {})(assets.Progress{Step: "build", What: "the kernel's tests", Done: 120})
		}, "--timeout 1m0s: no guest ran (stage: build the kernel's tests, 120 steps)"},
		"update": {func(g *Guests) { g.Fetching(nil)(assets.Progress{Step: "update", What: "forky"}) },
			"--timeout 1m0s: no guest ran (stage: update forky)"},
		"boot": {func(g *Guests) { g.Set("guest0", Boots) }, "--timeout 1m0s: guest0 still booted"},
		"in a stage": {func(g *Guests) { g.Stage("transfer"); g.Set("A", Runs) },
			"--timeout 1m0s: A still ran (stage: transfer)"},
		"one ended": {func(g *Guests) {
			for _, n := range []string{"guest0", "guest1", "guest2"} {
				g.Set(n, Boots)
				g.Set(n, Runs)
			}
			g.Set("guest1", "")
		}, "--timeout 1m0s: guest0 and guest2 still ran"},
		"some boot": {func(g *Guests) { g.Set("a", Runs); g.Set("b", Boots) },
			"--timeout 1m0s: b still booted, a still ran"},
	} {
		synctest.Test(t, func(t *testing.T) {
			var g Guests
			c.do(&g)
			ctx, cancel := Context(t.Context(), time.Minute, &g)
			defer cancel()
			<-ctx.Done()
			cause := context.Cause(ctx)
			if e := (*Error)(nil); !errors.As(cause, &e) || cause.Error() != c.want {
				t.Errorf("%s: %v", name, cause)
			}
		})
	}
}

func TestNoLimitEndsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, d := range []time.Duration{0, time.Hour} {
			ctx, cancel := Context(t.Context(), d, nil)
			time.Sleep(59 * time.Minute)
			testkit.OK(t, ctx.Err())
			cancel()
			testkit.ErrorIs(t, context.Cause(ctx), context.Canceled)
		}
		testkit.Equal(t, "names", And([]string{"a", "b", "c"}), "a, b and c")
		testkit.ErrorSays(t, Check(-time.Second), "--timeout -1s: a time, as 90s")
		testkit.OK(t, Check(0))
		var g *Guests
		g.Stage("x")
		g.Set("a", Runs)
		testkit.Equal(t, "nil", g.Still(), "no guest ran")
	})
}

package vhostuser

import (
	"errors"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

// A ring that does not start again with new features does not stop the others, nor do features that the device refuses.
// RESET_OWNER disables the other rings beside one that the device does not disable.
func TestRingsGoOnBesideOneThatDoesNotStart(t *testing.T) {
	boom := errors.New("boom")
	all, fewer := u64Body(testFeatures|FeatureProtocol), u64Body(testFeatures&^(1<<5)|FeatureProtocol)
	lives := func(h *host, want ...bool) {
		t.Helper()
		h.mu.Lock()
		defer h.mu.Unlock()
		for i, live := range want {
			if _, ok := h.live[i]; ok != live {
				t.Errorf("ring %d lives: %t", i, ok)
			}
		}
	}
	t.Run("a ring that does not start", func(t *testing.T) {
		h, g, l := serving(t)
		g.start(l, 3)
		starts := 0
		h.OnCall(func(method string) {
			if method != "StartQueue" {
				return
			}
			h.FailWith(method, nil)
			if starts++; starts == 2 {
				h.FailWith(method, boom)
			}
		})
		testkit.ErrorIs(t, l.command(SetFeatures, fewer), ErrRefused)
		lives(h, true, false, true)
		h.OnCall(nil)
		v := g.vring(1)
		must(t, l.SetVringAddr(1, v.Desc, v.Avail, v.Used)) // the same addresses again start the ring
		lives(h, true, true, true)
		h.Take()
		must(t, l.command(SetFeatures, fewer))
		testkit.Equal(t, "calls for features that the device has", len(h.Take()), 0)
	})
	t.Run("a ring that is not disabled", func(t *testing.T) {
		h, g, l := serving(t)
		g.start(l, 3)
		h.OnCall(func(method string) {
			if method == "EnableQueue" {
				h.FailWith(method, boom)
				h.OnCall(func(method string) { h.FailWith(method, nil) })
			}
		})
		h.Take()
		testkit.ErrorIs(t, l.command(ResetOwner, nil), ErrRefused)
		h.WantCalls("EnableQueue 0 false", "EnableQueue 1 false", "EnableQueue 2 false")
	})
	t.Run("features that are refused", func(t *testing.T) {
		h, g, l := serving(t)
		g.start(l, 3)
		h.FailWith("SetFeatures", boom)
		testkit.ErrorIs(t, l.command(SetFeatures, fewer), ErrRefused)
		lives(h, true, true, true)
		h.FailWith("SetFeatures", nil)
		h.Take()
		must(t, l.command(SetFeatures, all))
		testkit.Equal(t, "calls for the features as they were", len(h.Take()), 0)
	})
}

package vhostuser

import (
	"slices"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

func TestServeResets(t *testing.T) {
	h, g, l := serving(t)
	g.start(l, 1)
	h.Take()
	must(t, l.ResetDevice())
	h.WantCalls("StopQueue 0", "EnableQueue 0 false", "Reset")
	testkit.Equal(t, "regions after a reset", len(h.Space.Regions()), 1)
	must(t, l.SetVringKick(0, g.vring(0).Kick)) // starts nothing: the reset cleared the rest of the ring's description
	h.WantCalls()
	must(t, l.ResetDevice())
	h.WantCalls("Reset")
	must(t, l.SetupVring(g.vring(0)))
	must(t, l.SetStatus(15))
	must(t, l.SetStatus(0))
	h.WantCalls("StartQueue 0 size 128 at 0x1000 0x2000 0x3000 base 0 running false", "SetStatus 0xf", "StopQueue 0",
		"SetStatus 0x0")
}

// Status 0 is a reset only if RESET_DEVICE was not negotiated.
func TestServeTakesStatusZeroForAResetWithoutResetDevice(t *testing.T) {
	for name, protocol := range map[string]ProtocolFeatures{"RESET_DEVICE": allProtocol,
		"no RESET_DEVICE": allProtocol &^ ProtocolResetDevice, "no protocol features": 0} {
		t.Run(name, func(t *testing.T) {
			h, g, l := serving(t)
			l.negotiate(t, protocol)
			must(t, l.AddMemory(g.fd, 0, userBase, guestSize, 0))
			must(t, l.SetupVring(g.vring(0)))
			for range 2 { // the second SetStatus finds no started queue
				must(t, l.SetStatus(0))
			}
			v := g.vring(0)
			v.Base = 77
			must(t, l.SetupVring(v))
			must(t, l.SetStatus(8))
			_, err := l.GetStatus() // after its answer all requests before have been handled
			must(t, err)
			calls := h.Take()
			want := []string{"StopQueue 0", "SetStatus 0x0", "SetStatus 0x0"}
			if protocol&ProtocolResetDevice == 0 {
				want = []string{"StopQueue 0", "Reset", "SetStatus 0x0", "Reset", "SetStatus 0x0"}
			}
			want = append(want, "StartQueue 0 size 128 at 0x1000 0x2000 0x3000 base 77 running false", "SetStatus 0x8")
			if i := slices.Index(calls, "StopQueue 0"); i < 0 || !slices.Equal(calls[i:], want) {
				t.Errorf("%q, want %q at the end", calls, want)
			}
		})
	}
}

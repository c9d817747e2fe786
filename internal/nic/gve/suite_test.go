package gve

import (
	"testing"
	"time"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/nic/nictest"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// TestNIC runs the suite of package nictest.
func TestNIC(t *testing.T) {
	traits := nictest.Traits{OwnUnsplit: true, Completes: true, SplitStops: true}
	nictest.Run(t, traits, func(t testing.TB, files *dma.Files, sw *wire.Switch, i int, o nictest.Options) nictest.Guest {
		ro := rawOptions{pairs: 3, mtu: 9000, p2p: !o.NoP2P, rsc: i == 0 || !o.NoOffload, patience: patient, hold: o.Hold,
			clock: o.Clock, wait: o.Wait, sabotage: o.Sabotage}
		return newSuiteGuest(t, files, sw, i, ro)
	})
}

// Invariant: nic: The suite detects each fault of package sabotage that the device model can have.
func TestSuiteSeesSabotage(t *testing.T) { nictest.SeesSabotage(t, "gve", "TestNIC") }

// patient is rawOptions.patience in tests whose frames wait until the test goes on.
const patient = time.Minute

type world = nictest.World[*suiteGuest]

func newWorld(t testing.TB) *world {
	return newWorldWith(t, rawOptions{pairs: 3, mtu: 9000, p2p: true, rsc: true})
}

// newPatientWorld makes a world in which frames wait up to patient for a busy receiver.
func newPatientWorld(t testing.TB) *world {
	t.Helper()
	testkit.CheckFDs(t)
	return nictest.NewWorld(t, func(files *dma.Files, sw *wire.Switch, i int) *suiteGuest {
		ro := rawOptions{pairs: 3, mtu: 9000, p2p: true, rsc: true, patience: patient}
		return newSuiteGuest(t, files, sw, i, ro)
	})
}

// newWorldWith makes a world whose third guest (Bad) has the options o.
func newWorldWith(t testing.TB, o rawOptions) *world {
	t.Helper()
	testkit.CheckFDs(t)
	return newBareWorld(t, o)
}

// newBareWorld is newWorldWith without a check for leaked descriptors.
func newBareWorld(t testing.TB, o rawOptions) *world {
	t.Helper()
	return nictest.NewWorld(t, func(files *dma.Files, sw *wire.Switch, i int) *suiteGuest {
		if i == 2 {
			return newSuiteGuest(t, files, sw, i, o)
		}
		return newSuiteGuest(t, files, sw, i, rawOptions{pairs: 3, mtu: 9000, p2p: true, rsc: true})
	})
}

func tcp(from, to *suiteGuest, n int) nictest.Frame {
	return nictest.Make(to.mac, from.mac, nictest.Spec{Payload: n})
}

// arrives checks that a frame arrives, and is marked as having a good checksum if it left with a partial one.
func arrives(t testing.TB, g *suiteGuest, q int, f *nictest.Frame) {
	t.Helper()
	if got := nictest.Arrives(t, g, q, f); f.Partial && !got.Good {
		t.Error("the checksum is not vouched for")
	}
}

func (g *suiteGuest) sendsTo(to *suiteGuest, q, n int) {
	g.Helper()
	f := tcp(g, to, n)
	to.Post(0, 1)
	g.Send(q, f)
	arrives(g, to, 0, &f)
}

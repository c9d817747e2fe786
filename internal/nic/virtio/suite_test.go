package virtio_test

import (
	"testing"
	"time"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/nic/nictest"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func TestNIC(t *testing.T) {
	traits := nictest.Traits{RingHeader: 12}
	nictest.Run(t, traits, func(t testing.TB, files *dma.Files, sw *wire.Switch, i int, o nictest.Options) nictest.Guest {
		ro := rawOptions{pairs: 3, mtu: 9000, p2p: !o.NoP2P, patience: patient, hold: o.Hold, clock: o.Clock, wait: o.Wait,
			sabotage: o.Sabotage}
		if i == 1 && o.NoOffload {
			ro.drop = fOffloads
		}
		return newSuiteGuest(t, files, sw, i, ro)
	})
}

// Invariant: nic: The suite detects each fault of package sabotage that the device model can have.
func TestSuiteSeesSabotage(t *testing.T) { nictest.SeesSabotage(t, "virtio", "TestNIC") }

// patient is the Patience of devices whose frames must wait until the test goes on, even on a loaded machine.
const patient = time.Minute

type world = nictest.World[*suiteGuest]

func newWorld(t *testing.T) *world {
	return newWorldWith(t, rawOptions{pairs: 3, mtu: 9000, p2p: true})
}

func newWorldWith(t *testing.T, ro rawOptions) *world {
	t.Helper()
	testkit.CheckFDs(t)
	return nictest.NewWorld(t, func(files *dma.Files, sw *wire.Switch, i int) *suiteGuest {
		return newSuiteGuest(t, files, sw, i, ro)
	})
}

func tcp(from, to *suiteGuest, n int) nictest.Frame {
	return nictest.Make(to.mac, from.mac, nictest.Spec{Payload: n})
}

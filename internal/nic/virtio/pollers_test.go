package virtio_test

import (
	"runtime"
	"testing"
	"time"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/nic/nictest"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
)

func newPollers(t testing.TB, n int, hot bool) *nic.Pollers {
	t.Helper()
	p := testkit.Must(nic.NewPollers(n, hot))(t)
	t.Cleanup(p.Close)
	return p
}

func TestNICPolled(t *testing.T) {
	testkit.Slow(t)
	for name, hot := range map[string]bool{"sleeps": false, "hot": true} {
		t.Run(name, func(t *testing.T) {
			pollers := newPollers(t, 1, hot)
			traits := nictest.Traits{RingHeader: 12}
			nictest.Run(t, traits, func(t testing.TB, files *dma.Files, sw *wire.Switch, i int,
				o nictest.Options) nictest.Guest {
				ro := rawOptions{pairs: 3, mtu: 9000, p2p: !o.NoP2P, patience: patient, pollers: pollers, hold: o.Hold,
					clock: o.Clock}
				if i == 1 && o.NoOffload {
					ro.drop = fOffloads
				}
				return newSuiteGuest(t, files, sw, i, ro)
			})
		})
	}
}

// wantsKicks reports whether the device asks for a kick at the next frame of transmit queue 0, after n
// published chains (avail_event, virtio 1.3, 2.7.10).
func wantsKicks(g *suiteGuest, n int) bool {
	_, _, used := g.rings[1].Addrs()
	return le.Uint16(g.At(used+4+8*rawRing)) == uint16(n)
}

// After each frame the polling thread goes to sleep, and the device asks the driver for a kick at the next frame.
func TestPollersThatSleepWantKicks(t *testing.T) {
	w := newWorldWith(t, rawOptions{pairs: 1, mtu: 9000, pollers: newPollers(t, 1, false)})
	w.B.Post(0, 8)
	for sent := 1; sent < 5; sent++ { // one was sent when the world was made
		for deadline := time.Now().Add(patient); !wantsKicks(w.A, sent); runtime.Gosched() {
			if time.Now().After(deadline) {
				t.Fatalf("after %d frames the ring is polled for ever", sent)
			}
		}
		w.A.Send(0, tcp(w.A, w.B, 100))
		w.B.Receive(0)
	}
}

func TestHotPollersWantNoKicks(t *testing.T) {
	w := newWorldWith(t, rawOptions{pairs: 1, mtu: 9000, pollers: newPollers(t, 1, true)})
	w.B.Post(0, 64)
	for range 64 {
		f := tcp(w.A, w.B, 100)
		w.A.Add(0, &f, false)
		if w.A.rings[1].Publish() {
			t.Fatal("the device wants a kick")
		}
		w.A.Sent(0)
		w.B.Receive(0)
	}
}

package virtio_test

import (
	"testing"

	"vnic.dev/vnic/internal/nic/nictest"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
)

// The switch notifies other ports when a frontend hangs up, or resets its device.
func TestOthersHearOfAHangUp(t *testing.T) {
	files, sw := nictest.Switch(t)
	g := newRawGuest(t, files, sw, 0, rawOptions{pairs: 1, mtu: 1500, noGPU: true})
	w := &nictest.Witness{Restarts: make(chan *wire.Link, 10)}
	testkit.Must(sw.Attach(w, wire.LinkOptions{}))(t)
	g.OK(g.front.ResetDevice())
	testkit.Eventually(t, "they hear of the reset", func() bool { return len(w.Restarts) == 1 })
	g.hang()
	testkit.Eventually(t, "they hear of the hang-up", func() bool { return len(w.Restarts) == 2 })
	testkit.Equal(t, "whose", <-w.Restarts, g.Port().Link())
}

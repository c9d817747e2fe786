package gve

import (
	"testing"

	"vnic.dev/vnic/internal/nic/nictest"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
)

// When the frontend disconnects, or resets the device, the switch notifies the other ports.
func TestOthersHearOfAHangUp(t *testing.T) {
	files, sw := nictest.Switch(t)
	g := newSuiteGuest(t, files, sw, 0, rawOptions{pairs: 1, mtu: 1500})
	w := &nictest.Witness{Restarts: make(chan *wire.Link, 10)}
	testkit.Must(sw.Attach(w, wire.LinkOptions{}))(t)
	before := len(w.Restarts)
	g.OK(g.dev.Reset())
	testkit.Eventually(t, "they hear of the reset", func() bool { return len(w.Restarts) == before+1 })
	g.dev.Disconnected()
	testkit.Eventually(t, "they hear of the hang-up", func() bool { return len(w.Restarts) == before+2 })
	testkit.Equal(t, "whose", <-w.Restarts, g.Port().Link())
}

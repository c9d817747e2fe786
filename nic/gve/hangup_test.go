package gve

import (
	"testing"

	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/nic/nictest"
	"vnic.dev/vnic/wire"
)

// witness is a port that hears when another one's guest begins anew.
type witness struct{ restarts chan *wire.Link }

func (*witness) Name() string                         { return "witness" }
func (*witness) Limits() wire.Limits                  { return wire.Limits{} }
func (*witness) Deliver(*wire.Worker, []*wire.Packet) {}
func (w *witness) PortRestarted(l *wire.Link)         { w.restarts <- l }

// A client that hangs up, and a driver that resets the device, have left nothing with other ports.
func TestOthersHearOfAHangUp(t *testing.T) {
	files, sw := nictest.Switch(t)
	g := newSuiteGuest(t, files, sw, 0, rawOptions{pairs: 1, mtu: 1500})
	w := &witness{make(chan *wire.Link, 10)}
	testkit.Must(sw.Attach(w, wire.LinkOptions{}))(t)
	before := len(w.restarts)
	g.OK(g.dev.Reset())
	testkit.Eventually(t, "they hear of the reset", func() bool { return len(w.restarts) == before+1 })
	g.dev.Disconnected()
	testkit.Eventually(t, "they hear of the hang-up", func() bool { return len(w.restarts) == before+2 })
	testkit.Equal(t, "whose", <-w.restarts, g.Port().Link())
}

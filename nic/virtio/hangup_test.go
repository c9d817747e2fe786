package virtio_test

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

// A frontend that hangs up, and one that resets its device, have left nothing with other ports.
func TestOthersHearOfAHangUp(t *testing.T) {
	files, sw := nictest.Switch(t)
	g := newRawGuest(t, files, sw, 0, rawOptions{pairs: 1, mtu: 1500, noGPU: true})
	w := &witness{make(chan *wire.Link, 10)}
	testkit.Must(sw.Attach(w, wire.LinkOptions{}))(t)
	g.OK(g.front.ResetDevice())
	testkit.Eventually(t, "they hear of the reset", func() bool { return len(w.restarts) == 1 })
	g.hang()
	testkit.Eventually(t, "they hear of the hang-up", func() bool { return len(w.restarts) == 2 })
	testkit.Equal(t, "whose", <-w.restarts, g.Port().Link())
}

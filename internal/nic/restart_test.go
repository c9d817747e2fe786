package nic

import (
	"log/slog"
	"testing"

	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
)

// witness is another port, which counts how often the one beside it begins anew.
type witness struct{ links []*wire.Link }

func (*witness) Name() string                         { return "witness" }
func (*witness) Limits() wire.Limits                  { return wire.Limits{} }
func (*witness) Deliver(*wire.Worker, []*wire.Packet) {}
func (w *witness) PortRestarted(l *wire.Link)         { w.links = append(w.links, l) }

// The other ports of a switch hear when a port's guest begins anew: by a reset, with another driver, by its end. The
// port itself does not.
func TestOthersHearOfRestarts(t *testing.T) {
	sw := wire.NewSwitch(slog.New(slog.DiscardHandler))
	defer sw.Close()
	w := &witness{}
	testkit.Must(sw.Attach(w, wire.LinkOptions{}))(t)
	p := commandPort(t, Config{})
	p.Reset() // nobody hears of one that is not attached
	testkit.OK(t, p.Attach(sw, wire.LinkOptions{}))
	for i, f := range []func(){p.Reset, p.DriverChanged, p.Restarted, func() { testkit.OK(t, sw.Detach(p.Link())) }} {
		f()
		testkit.Equal(t, "times", len(w.links), i+1)
		testkit.Equal(t, "link", w.links[i], p.Link())
	}
}

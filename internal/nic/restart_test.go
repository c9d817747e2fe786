package nic

import (
	"log/slog"
	"testing"

	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
)

type witness struct{ links []*wire.Link }

func (*witness) Name() string                         { return "witness" }
func (*witness) Limits() wire.Limits                  { return wire.Limits{} }
func (*witness) Deliver(*wire.Worker, []*wire.Packet) {}
func (w *witness) PortRestarted(l *wire.Link)         { w.links = append(w.links, l) }

// The switch notifies other ports (PortRestarted) when a port's guest has restarted, and when the port is detached.
func TestOthersHearOfRestarts(t *testing.T) {
	sw := wire.NewSwitch(slog.New(slog.DiscardHandler))
	defer sw.Close()
	w := &witness{}
	testkit.Must(sw.Attach(w, wire.LinkOptions{}))(t)
	p := commandPort(t, Config{})
	p.Reset() // not attached: no port is notified
	testkit.OK(t, p.Attach(sw, wire.LinkOptions{}))
	for i, f := range []func(){p.Reset, p.DriverChanged, p.Restarted, func() { testkit.OK(t, sw.Detach(p.Link())) }} {
		f()
		testkit.Equal(t, "times", len(w.links), i+1)
		testkit.Equal(t, "link", w.links[i], p.Link())
	}
}

package nictest

import "vnic.dev/vnic/internal/wire"

// Witness is a port of a switch that drops what comes, and gets the link of each other port whose guest begins anew
// (wire.RestartObserver).
type Witness struct {
	Restarts chan *wire.Link // the caller makes it, with room for all
}

// Name implements wire.Port, as Limits and Deliver do.
func (*Witness) Name() string { return "witness" }

// Limits says that it takes no frame.
func (*Witness) Limits() wire.Limits { return wire.Limits{} }

// Deliver leaves all packets as they are: not taken.
func (*Witness) Deliver(*wire.Worker, []*wire.Packet) {}

// PortRestarted implements wire.RestartObserver.
func (w *Witness) PortRestarted(l *wire.Link) { w.Restarts <- l }

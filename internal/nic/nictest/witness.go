package nictest

import "vnic.dev/vnic/internal/wire"

// Witness is a port that records the links for which the switch calls PortRestarted.
type Witness struct {
	Restarts chan *wire.Link // with enough capacity
}

// Name implements wire.Port.
func (*Witness) Name() string { return "witness" }

// Limits implements wire.Port.
func (*Witness) Limits() wire.Limits { return wire.Limits{} }

// Deliver implements wire.Port.
func (*Witness) Deliver(*wire.Worker, []*wire.Packet) {}

// PortRestarted implements wire.RestartObserver.
func (w *Witness) PortRestarted(l *wire.Link) { w.Restarts <- l }

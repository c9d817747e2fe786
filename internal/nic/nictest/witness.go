package nictest

import "vnic.dev/vnic/internal/wire"

// Witness is a wire.Port that sends each link with which PortRestarted is called to Restarts.
type Witness struct {
	Restarts chan *wire.Link // the test makes it, with room for all links
}

// Name implements wire.Port.
func (*Witness) Name() string { return "witness" }

// Limits implements wire.Port.
func (*Witness) Limits() wire.Limits { return wire.Limits{} }

// Deliver implements wire.Port.
func (*Witness) Deliver(*wire.Worker, []*wire.Packet) {}

// PortRestarted implements wire.RestartObserver.
func (w *Witness) PortRestarted(l *wire.Link) { w.Restarts <- l }

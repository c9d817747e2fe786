package nictest

import "vnic.dev/vnic/internal/wire"

// Witness is a port of a switch that takes no packets, and records the links for which the switch
// calls PortRestarted (wire.RestartObserver).
type Witness struct {
	Restarts chan *wire.Link // made by the caller, with enough capacity
}

// Name implements wire.Port.
func (*Witness) Name() string { return "witness" }

// Limits implements wire.Port: it returns limits that no frame meets.
func (*Witness) Limits() wire.Limits { return wire.Limits{} }

// Deliver implements wire.Port: it takes no packet, and sets no Verdict.
func (*Witness) Deliver(*wire.Worker, []*wire.Packet) {}

// PortRestarted implements wire.RestartObserver.
func (w *Witness) PortRestarted(l *wire.Link) { w.Restarts <- l }

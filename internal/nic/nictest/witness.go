package nictest

import "vnic.dev/vnic/internal/wire"

// Witness is a port of a switch that drops all packets, and records the link of each other port
// whose guest restarts (wire.RestartObserver).
type Witness struct {
	Restarts chan *wire.Link // made by the caller, with enough capacity
}

// Name implements wire.Port, as Limits and Deliver do.
func (*Witness) Name() string { return "witness" }

// Limits returns limits that no frame meets.
func (*Witness) Limits() wire.Limits { return wire.Limits{} }

// Deliver sets no Verdict: no packet is taken.
func (*Witness) Deliver(*wire.Worker, []*wire.Packet) {}

// PortRestarted implements wire.RestartObserver.
func (w *Witness) PortRestarted(l *wire.Link) { w.Restarts <- l }

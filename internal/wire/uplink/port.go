package uplink

import (
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/splitter"
)

type port struct{ *Uplink }

var _ wire.Port = (*port)(nil)

// Name implements wire.Port.
func (p *port) Name() string { return p.o.Name }

// UplinkStats identifies this kind of port, and returns Stats.
func (p *port) UplinkStats() map[string]uint64 { return p.Stats() }

// Limits implements wire.Port.
func (p *port) Limits() wire.Limits {
	return wire.Limits{MaxFrame: uint32(p.o.MTU) + splitter.EthLen}
}

// Deliver implements wire.Port.
func (p *port) Deliver(w *wire.Worker, batch []*wire.Packet) {
	o := p.out
	l := o.lane(batch[0].From) // a batch comes from one sending port
	for i, pkt := range batch {
		select {
		case <-p.ended:
			setAll(batch[i:], wire.Drop(wire.DropStopped))
			return
		default:
		}
		if int(pkt.Len()) > o.longest {
			pkt.Verdict = wire.Drop(wire.DropTooBig)
			continue
		}
		if f := l.take(); f != nil {
			pkt.Verdict = o.put(w, pkt, f)
			continue
		}
		if !o.waits.Load() {
			setAll(batch[i:], wire.Verdict{Kind: wire.Busy, Queue: l})
			return
		}
		p.count.drop(socketFull)
		pkt.Verdict = wire.Drop(wire.DropNoBuffer)
	}
}

func setAll(batch []*wire.Packet, v wire.Verdict) {
	for _, p := range batch {
		p.Verdict = v
	}
}

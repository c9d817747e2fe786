package uplink

import (
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/splitter"
)

// port is an uplink's end on the switch, for what goes out.
type port struct{ *Uplink }

var _ wire.Port = (*port)(nil)

// Name implements wire.Port.
func (p *port) Name() string { return p.o.Name }

// UplinkStats tells this port from others, and is Stats, for those who see the port only.
func (p *port) UplinkStats() map[string]uint64 { return p.Stats() }

// Limits implements wire.Port. GSO packets are cut and checksums completed before Deliver.
func (p *port) Limits() wire.Limits {
	return wire.Limits{MaxFrame: uint32(p.o.MTU) + splitter.EthLen}
}

// Deliver implements wire.Port: it copies frames to free buffers, as many as are the part of the port that sends.
func (p *port) Deliver(w *wire.Worker, batch []*wire.Packet) {
	o := p.out
	l := o.lane(batch[0].From) // a batch is of one port
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

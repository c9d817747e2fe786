package sabotage

import (
	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/splitter"
)

// incomplete is a transmit queue that, when an occasion is due, does not return a frame to its driver.
type incomplete struct {
	nic.TxQueue
	occasions nic.Occasions
	kept      []*nic.TxFrame // scratch
}

func dropCompletions(s *nic.Sabotage) {
	s.Tx = func(q nic.TxQueue) nic.TxQueue { return &incomplete{TxQueue: q, occasions: s.Occasions()} }
}

// Done implements nic.TxQueue.
func (q *incomplete) Done(fs []*nic.TxFrame) error {
	q.kept = q.kept[:0]
	for _, f := range fs {
		if !q.occasions.Due() {
			q.kept = append(q.kept, f)
		}
		q.occasions.Pass()
	}
	return q.TxQueue.Done(q.kept)
}

// out is the common part of outlets that damage frames. A held frame that is sent again is another occasion.
type out struct {
	nic.Outlet
	occasions nic.Occasions
	undo      []func() // called after Send: the Sender must find held frames unchanged
}

func (o *out) due() bool {
	due := o.occasions.Due()
	o.occasions.Pass()
	return due
}

func (o *out) send(batch []*wire.Packet) {
	o.Outlet.Send(batch)
	for _, f := range o.undo {
		f()
	}
	clear(o.undo)
	o.undo = o.undo[:0]
}

// unsummed is an outlet that, when an occasion is due, leaves a frame's partial checksum incomplete, and marks the
// frame as splitter.CsumNone.
type unsummed struct{ out }

func skipSums(s *nic.Sabotage) {
	s.Out = func(o nic.Outlet) nic.Outlet { return &unsummed{out{Outlet: o, occasions: s.Occasions()}} }
}

// Send implements nic.Outlet. GSO packets are no occasion: their segments get their checksums later.
func (o *unsummed) Send(batch []*wire.Packet) {
	for _, p := range batch {
		if p.Meta.Csum == splitter.CsumPartial && p.Meta.GSOType == splitter.GSONone && o.due() {
			p.Meta.Csum = splitter.CsumNone
			o.undo = append(o.undo, func() { p.Meta.Csum = splitter.CsumPartial })
		}
	}
	o.send(batch)
}

// swapped is an outlet that, when an occasion is due, swaps two consecutive frames of a flow, both with payload.
type swapped struct {
	out
	batch []*wire.Packet
}

func swapFrames(s *nic.Sabotage) {
	s.Out = func(o nic.Outlet) nic.Outlet { return &swapped{out: out{Outlet: o, occasions: s.Occasions()}} }
}

// Send implements nic.Outlet.
func (o *swapped) Send(batch []*wire.Packet) {
	o.batch = append(o.batch[:0], batch...)
	for i := 0; i+1 < len(batch); i++ {
		if sameFlow(batch[i], batch[i+1]) && o.due() {
			o.batch[i], o.batch[i+1] = batch[i+1], batch[i]
			i++
		}
	}
	o.send(o.batch)
	clear(o.batch)
}

func sameFlow(p, q *wire.Packet) bool {
	h, k := &p.Meta.Headers, &q.Meta.Headers
	return (h.Class == splitter.TCP || h.Class == splitter.UDP) && h.Class == k.Class && h.Flow == k.Flow &&
		p.PayloadLen > 0 && q.PayloadLen > 0
}

// mixed is an outlet that, when an occasion is due, swaps the payload of the first two segments of a GSO packet.
type mixed struct{ out }

func mixSegments(s *nic.Sabotage) {
	s.Out = func(o nic.Outlet) nic.Outlet { return &mixed{out{Outlet: o, occasions: s.Occasions()}} }
}

// Send implements nic.Outlet.
func (o *mixed) Send(batch []*wire.Packet) {
	for _, p := range batch {
		mss := uint64(p.Meta.GSOSize)
		if p.Meta.GSOType == splitter.GSONone || uint64(p.PayloadLen) < 2*mss || !o.due() {
			continue
		}
		was := p.Payload
		p.Payload = dma.Cut(nil, was, mss, mss)
		p.Payload = dma.Cut(p.Payload, was, 0, mss)
		p.Payload = dma.Cut(p.Payload, was, 2*mss, uint64(p.PayloadLen)-2*mss)
		o.undo = append(o.undo, func() { p.Payload = was })
	}
	o.send(batch)
}

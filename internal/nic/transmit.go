package nic

import (
	"sync"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/nic/flows"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/splitter"
)

// Transmitter is the port's part of one transmit queue. It belongs to one goroutine at a time, which is inside the
// epoch of the port's address space (dma.Space.Enter) during Send.
type Transmitter struct {
	Worker *wire.Worker
	port   *Port
	delta  delta

	// uncounted is held by Send from before it delivers a batch until it has counted the packets. Readers of counters
	// wait for it first (settle), so that the counters include each packet that a receiver got before.
	uncounted sync.Mutex
	out       Counters
	traffic   Traffic
	flows     *flows.Shard // nil: the queue has no account of flows

	bounce []dma.Segment // memory for the payloads of one batch that toHost copies; nil until toHost needs it
	marks  []mark
	run    []*wire.Packet // packets of a batch for the switch: all but control frames and packets that wait for a link
	host   []dma.Segment  // segments of bounce that replace payloads
	ctl    []byte         // a complete control frame
	answer []byte
	reply  wire.Packet
}

type mark struct {
	header uint32
	skip   bool // the packet is a control frame, or waits for a link
	byMem  bytesByMem
}

// NewTransmitter makes the Transmitter of the port's next transmit queue, for batches of at most batch packets.
func (p *Port) NewTransmitter(batch int) *Transmitter {
	t := &Transmitter{Worker: wire.NewWorker(), port: p, marks: make([]mark, batch), run: make([]*wire.Packet, 0, batch),
		ctl: make([]byte, control.MaxFrame), answer: make([]byte, control.MaxFrame)}
	t.delta.to = &t.traffic
	p.mu.Lock()
	t.flows = p.flowsOfTx(len(p.transmitters))
	p.transmitters = append(p.transmitters, t)
	p.mu.Unlock()
	return t
}

// Send carries out the control frames of a batch, delivers the other packets unless they have to wait for a link, and
// counts the delivered packets that are not Busy. It sets the Verdict of each packet. A packet is new and prepared
// (wire.Packet.Prepare), or a retry, for which RelocatePayload was called; retries keep their old order.
func (t *Transmitter) Send(batch []*wire.Packet) {
	bounced := uint32(0)
	run := t.run[:0]
	g, nodes := gate{shape: t.port.conf.Shape}, t.port.space.Nodes() > 0
	for i, p := range batch {
		m := &t.marks[i]
		m.byMem.reset(nodes)
		m.skip, m.header = false, uint32(len(p.Header))
		if isControl(p) {
			m.skip = true
			t.command(p)
			continue
		}
		m.byMem.locate(p.Payload)
		m.byMem.buffers = 1 + uint32(len(p.Payload))
		direct := m.byMem.gpu == 0 || t.port.direct(p.Payload)
		if g.shape != nil && !g.leaves(p, &m.byMem, direct) {
			m.skip = true
			continue
		}
		if !direct {
			bounced = t.toHost(p, m, bounced)
		}
		run = append(run, p)
	}
	t.uncounted.Lock()
	defer t.uncounted.Unlock()
	if len(run) > 0 { // one Deliver for all: only within one call does a busy receiver hold up the later packets of a flow
		t.deliver(run)
	}
	for i, p := range batch {
		if m := &t.marks[i]; !m.skip {
			t.count(p, m)
		}
	}
	t.flush()
}

func (t *Transmitter) flush() {
	t.delta.flush(&t.out)
	if t.flows != nil {
		t.flows.Flush()
	}
}

func (t *Transmitter) settle() {
	t.uncounted.Lock()
	defer t.uncounted.Unlock()
}

func (t *Transmitter) deliver(run []*wire.Packet) {
	link := t.port.link.Load()
	if link != nil && t.port.trouble.Load()&noCarrier == 0 {
		link.Deliver(t.Worker, run)
		return
	}
	for _, p := range run { // not attached yet, or the link is down
		p.Verdict = wire.Drop(wire.DropStopped)
		if link != nil {
			link.GaveUp(t.Worker, p, wire.DropStopped)
		}
	}
}

// toHost copies p's payload, which has GPU memory that the NIC cannot reach peer to peer, to the slot of bounce with
// the number used, and makes the slot p's payload. It returns the number of the next free slot. The next batch uses the
// slots again.
func (t *Transmitter) toHost(p *wire.Packet, m *mark, used uint32) uint32 {
	if t.bounce == nil {
		t.bounce = newBounce(uint32(len(t.marks)) * MaxFrame)
		t.host = make([]dma.Segment, len(t.marks))
	}
	slot := &t.host[used]
	*slot = t.bounce[0]
	slot.Off, slot.Len = uint64(used)*MaxFrame, p.PayloadLen
	dst := t.host[used : used+1 : used+1]
	if _, err := t.Worker.Copier.Copy(dst, p.Payload); err != nil {
		// The payload's memory is gone. p keeps its payload: a receiver's copy will meet the same fault.
		return used
	}
	p.Payload = append(p.Payload[:0], *slot)
	m.byMem.bounced = m.byMem.device + m.byMem.gpuFile
	m.byMem.host += m.byMem.bounced
	m.byMem.device, m.byMem.gpuFile = 0, 0
	return used + 1
}

// count counts a packet that is not Busy: as sent if it was taken or lost on a link (wire.DropLinkLoss), else as
// dropped.
func (t *Transmitter) count(p *wire.Packet, m *mark) {
	switch {
	case p.Verdict.Kind == wire.Busy:
		return
	case p.Verdict.Kind == wire.Dropped && p.Verdict.Reason != wire.DropLinkLoss:
		t.lose(p, p.Verdict.Reason)
		return
	}
	if t.flows != nil {
		a := t.flows.At(&p.Meta.Headers.Flow)
		countFlow(a, p, p.Segments(), m.header, &m.byMem)
		if p.Verdict.Kind == wire.Dropped {
			dropFlow(a, p, p.Verdict.Reason)
		}
	}
	t.delta.count(uint64(p.Segments()), uint64(m.header), &m.byMem)
	for _, fc := range t.port.steering.Load().flowCounters {
		if fc.tx.flow == p.Meta.Headers.Flow {
			fc.tx.count(&p.Meta.Headers, uint64(p.Segments()), uint64(m.header), uint64(p.PayloadLen), &m.byMem)
		}
	}
}

// Dropped implements Outlet.
func (t *Transmitter) Dropped(p *wire.Packet, r wire.DropReason) {
	if link := t.port.link.Load(); link != nil {
		link.GaveUp(t.Worker, p, r)
	}
	t.lose(p, r)
	t.flush()
}

func (t *Transmitter) lose(p *wire.Packet, r wire.DropReason) {
	t.delta.drop(uint64(p.PayloadLen))
	if t.flows != nil {
		dropFlow(t.flows.At(&p.Meta.Headers.Flow), p, r)
	}
	for _, fc := range t.port.steering.Load().flowCounters {
		if fc.tx.flow == p.Meta.Headers.Flow {
			fc.tx.lose(uint64(p.PayloadLen))
		}
	}
}

// Discard counts, as dropped for reason r, a frame that the device model returns to its driver without making a packet
// of it.
func (t *Transmitter) Discard(r wire.DropReason) {
	t.discard(0, r)
	t.delta.flush(&t.out)
}

// discard counts a frame that the NIC drops before the wire, at the queue and at the link.
func (t *Transmitter) discard(payload uint64, r wire.DropReason) {
	t.delta.drop(payload)
	if link := t.port.link.Load(); link != nil {
		link.Refuse(r)
	}
}

// isControl reports whether a packet is a control frame for the port: to wire.ControlMAC, of type
// wire.EtherTypeControl, and without VLAN tags.
func isControl(p *wire.Packet) bool {
	return p.Dst == wire.ControlMAC && p.Meta.Headers.EtherType == wire.EtherTypeControl && p.Meta.Headers.VLANs == 0
}

// command carries out a control frame, and passes the answer, if any, to putOwn. It drops a GSO packet, a frame that is
// too long, and one whose memory cannot be read.
func (t *Transmitter) command(p *wire.Packet) {
	p.Verdict = wire.Verdict{Kind: wire.Taken}
	if p.Len() > uint32(len(t.ctl)) || p.Meta.GSOType != splitter.GSONone {
		p.Verdict = wire.Drop(wire.DropTooBig)
		t.discard(uint64(p.PayloadLen), wire.DropTooBig)
		return
	}
	n := copy(t.ctl, p.Header)
	k, err := t.Worker.Copier.Read(t.ctl[n:p.Len()], p.Payload)
	if err != nil {
		p.Verdict = wire.Drop(wire.DropFault)
		t.discard(uint64(p.PayloadLen), wire.DropFault)
		return
	}
	if answer := t.port.dispatcher.Handle(t.ctl[:n+k], t.answer); answer != nil {
		ownFrame(&t.reply, answer)
		t.port.putOwn(t.Worker.Copier, &t.reply)
	}
}

// ownFrame makes p the packet of a control frame from the port, b, which lies in p.Header as a whole.
func ownFrame(p *wire.Packet, b []byte) {
	*p = wire.Packet{Header: b}
	p.Meta.Headers = splitter.Headers{Class: splitter.NotIP, EtherType: wire.EtherTypeControl, L3Off: splitter.EthLen,
		HdrLen: splitter.EthLen, FrameLen: uint32(len(b))}
	p.Prepare()
}

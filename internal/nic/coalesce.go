package nic

import (
	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/nic/coalesce"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/splitter"
)

const (
	// maxMerges bounds the open merges that end with their batch: as many flows as Linux's GRO keeps in a hash
	// bucket (MAX_GRO_SKBS).
	maxMerges = 8
	// lookAhead is the number of packets in which the function followed looks for the next one of a flow.
	lookAhead = maxMerges
	// mergeSegments bounds the memory segments of a merge's payload.
	mergeSegments = dma.KeepSegments
)

// merger merges frames of the same flow to GSO packets (receive coalescing). Its user holds the queue's lock.
// With holds, merges may outlive their batch (hold.go).
type merger struct {
	limits wire.Limits // of the driver
	holds  bool        // merges may outlive their batch
	open   []merge     // the first n are in use, the oldest first
	n      int
	next   []int32 // by packet of the batch: the next one of its merge
	pkt    wire.Packet
	hdr    [splitter.MaxHeader]byte
	store  *store // for merges that outlive their batch; made when needed
}

// merge is an open merge of frames of this batch and of earlier ones.
type merge struct {
	coalesce.Merge
	route       route
	first, last int32 // in this batch
	here        int   // frames in this batch
	segments    int   // memory segments of the payload, held or of this batch
	checked     bool  // the first frame's checksum was checked
	alone       bool  // no frame can join
	held        *held // frames of earlier batches; nil: none
}

// merging returns the merger for a batch; nil: the queue merges none of its packets.
func (rq *rxQueue) merging(d *delivery, batch []*wire.Packet) *merger {
	p, holds := d.port, d.port.hold != nil
	if !holds && len(batch) < 2 {
		return nil
	}
	m, limits := rq.merger, p.limits.Load()
	if p.separate.Load() || !limits.Csum || limits.GSO == 0 {
		if m != nil && m.n > 0 {
			m.finish(d, rq, nil)
			rq.holding.Store(int32(m.n))
		}
		return nil
	}
	if m == nil {
		m = &merger{holds: holds, open: make([]merge, maxMerges)}
		if holds {
			m.open = make([]merge, maxHeld)
		}
		m.pkt.Payload = make([]dma.Segment, 0, mergeSegments)
		rq.merger = m
	}
	m.limits = *limits
	if len(m.next) < len(batch) {
		m.next = make([]int32, len(batch))
	}
	return m
}

// take puts packet i of the batch into a merge. false: the caller must put it into the queue by itself.
func (m *merger) take(d *delivery, rq *rxQueue, batch []*wire.Packet, i int, r *route) bool {
	pkt := batch[i]
	followed := m.holds || followed(batch, i)
	if m.n == 0 && !followed {
		return false
	}
	h := &pkt.Meta.Headers
	switch h.Class {
	case splitter.TCP:
	case splitter.UDP, splitter.NotIP:
		return false
	default: // a fragment or a tunnel may belong to any of the merges
		m.finish(d, rq, batch)
		return false
	}
	if m.holds && d.blocked.waitFor(r) != nil { // a packet that it must not overtake waits
		return false
	}
	possible := m.possible(d, pkt, r)
	for k := range m.n {
		g := &m.open[k]
		if !g.Flow(&h.Flow) {
			continue
		}
		if possible && m.joins(d, g, batch, pkt) {
			if g.here++; g.here == 1 {
				g.first = int32(i)
			} else {
				m.next[g.last] = int32(i)
			}
			g.last = int32(i)
			g.Add(pkt.Header, &pkt.Meta, pkt.PayloadLen)
			g.segments += len(pkt.Payload)
			if g.Ended() {
				m.end(d, rq, batch, k)
			}
			return true
		}
		if !m.end(d, rq, batch, k) {
			return false
		}
		break // a flow has at most one merge
	}
	if !possible || !followed {
		return false
	}
	var g merge
	if !g.Begin(pkt.Header, &pkt.Meta, pkt.PayloadLen, m.longest()) {
		return false
	}
	if m.n == len(m.open) && !m.end(d, rq, batch, 0) {
		return false
	}
	g.route, g.first, g.last, g.here, g.segments = *r, int32(i), int32(i), 1, len(pkt.Payload)
	m.open[m.n] = g
	m.n++
	return true
}

// followed reports whether the next packet of a packet's flow may be among the lookAhead packets behind it. It
// compares only sequence numbers.
func followed(batch []*wire.Packet, i int) bool {
	h := &batch[i].Meta.Headers
	if h.Class != splitter.TCP || batch[i].PayloadLen == 0 {
		return false
	}
	next := h.Seq + batch[i].PayloadLen
	for _, p := range batch[i+1 : min(i+1+lookAhead, len(batch))] {
		if p.Meta.Headers.Seq == next {
			return true
		}
	}
	return false
}

// possible reports whether a packet with route r could be part of a merge.
func (m *merger) possible(d *delivery, pkt *wire.Packet, r *route) bool {
	if !coalesce.Possible(&pkt.Meta, pkt.PayloadLen) || r.unsplit || !r.split && d.s.splits[r.home].On {
		return false
	}
	t := splitter.GSOTCPv4
	if pkt.Meta.Headers.IPv6 {
		t = splitter.GSOTCPv6
	}
	return m.limits.GSO.Has(t)
}

// longest returns the length of the longest GSO packet.
func (m *merger) longest() uint32 {
	if m.limits.MaxBytes == 0 {
		return MaxFrame
	}
	return min(m.limits.MaxBytes, MaxFrame)
}

// joins reports whether a packet continues merge g of its flow; it then takes g's route.
func (m *merger) joins(d *delivery, g *merge, batch []*wire.Packet, pkt *wire.Packet) bool {
	if g.alone || !g.Continues(pkt.Header, &pkt.Meta, pkt.PayloadLen) ||
		g.segments+len(pkt.Payload) > mergeSegments {
		return false
	}
	if !g.checked {
		g.checked = true
		if g.alone = !m.firstVouched(d.w.Copier, g, batch); g.alone {
			return false
		}
	}
	return vouched(d.w.Copier, pkt.Header, &pkt.Meta, pkt.Payload, pkt.PayloadLen)
}

func (m *merger) firstVouched(c *dma.Copier, g *merge, batch []*wire.Packet) bool {
	if g.held != nil {
		hdr, meta := g.First()
		m.pkt.Payload = dma.Cut(dma.Reuse(m.pkt.Payload), g.held.chunks, 0, uint64(g.MSS()))
		return vouched(c, hdr, meta, m.pkt.Payload, g.MSS())
	}
	first := batch[g.first]
	return vouched(c, first.Header, &first.Meta, first.Payload, first.PayloadLen)
}

// vouched calls coalesce.Vouched; false also if the payload cannot be read.
func vouched(c *dma.Copier, hdr []byte, m *splitter.Meta, payload []dma.Segment, n uint32) bool {
	var sum uint16
	if coalesce.NeedsSum(m) {
		var err error
		if sum, err = c.Sum(payload); err != nil {
			return false // copying it returns the error
		}
	}
	return coalesce.Vouched(hdr, m, n, sum)
}

// finish ends the merges, oldest first. One with held frames that finds no buffers stays open.
func (m *merger) finish(d *delivery, rq *rxQueue, batch []*wire.Packet) {
	for k := 0; k < m.n; {
		if !m.end(d, rq, batch, k) {
			k++
		}
	}
}

// end ends merge k: as one packet if possible, else frame by frame. false: its held frames found no buffers
// and stay.
func (m *merger) end(d *delivery, rq *rxQueue, batch []*wire.Packet, k int) bool {
	if m.open[k].held != nil {
		return m.release(d, rq, batch, k)
	}
	g := m.open[k]
	m.remove(k)
	if g.Frames() > 1 && d.blocked.waitFor(&g.route) == nil && m.put(d, rq, batch, &g) {
		return true
	}
	m.apart(d, rq, batch, &g)
	return true
}

// apart calls rxQueue.one for each of a merge's frames of this batch.
func (m *merger) apart(d *delivery, rq *rxQueue, batch []*wire.Packet, g *merge) {
	for i, n := g.first, g.here; n > 0; i, n = m.next[i], n-1 {
		rq.one(d, batch[i], &g.route)
	}
}

func (m *merger) remove(k int) {
	m.n--
	copy(m.open[k:], m.open[k+1:m.n+1])
	m.open[m.n] = merge{} // for the garbage collector
}

// put puts a merge into the queue as one packet; false: the queue did not take it. Counters and taps see the
// original frames, the account of flows one packet.
func (m *merger) put(d *delivery, rq *rxQueue, batch []*wire.Packet, g *merge) bool {
	p := &m.pkt
	p.Header = g.Header(m.hdr[:], &p.Meta)
	p.Payload, p.PayloadLen = dma.Reuse(p.Payload), g.Payload()
	if h := g.held; h != nil {
		p.Src, p.Dst, p.From = h.src, h.dst, h.from
		p.Payload = dma.Cut(p.Payload, h.chunks, 0, uint64(h.bytes))
	} else {
		first := batch[g.first]
		p.Src, p.Dst, p.From = first.Src, first.Dst, first.From
	}
	for i, n := g.first, g.here; n > 0; i, n = m.next[i], n-1 {
		p.Payload = dma.Cut(p.Payload, batch[i].Payload, 0, uint64(batch[i].PayloadLen))
	}
	r := &g.route
	rq.mover.begin()
	rq.frame = Frame{Packet: p, Split: r.split, HeaderLen: r.hlen, Merged: true, Hashed: r.hashed, Hash: r.hash}
	if rq.q.Put(&rq.mover, &rq.frame) != PutTaken {
		return false
	}
	place := wire.Placement{Queue: r.q, Split: r.split, HeaderLen: r.hlen, Merged: true,
		Bounced: rq.mover.byMem.bounced > 0}
	off := uint32(0)
	if h := g.held; h != nil {
		off = m.parts(d, rq, h, &place)
	}
	for i, n := g.first, g.here; n > 0; i, n = m.next[i], n-1 {
		off = rq.part(d, batch[i], &place, off)
	}
	rq.delta.add(&rq.mover.byMem)
	if a := rq.account(d.s, p); a != nil {
		countFlow(a, p, uint32(g.Frames()), uint32(len(p.Header)), &rq.mover.byMem)
	}
	if d.gate.shape != nil {
		rq.took(d.gate.shape)
	}
	rq.merged.add(uint64(g.Frames()))
	rq.merges.add(1)
	return true
}

// part counts a frame of a merged packet, whose payload begins at off, and reports it to the tap. next is the
// offset of the next frame's payload.
func (rq *rxQueue) part(d *delivery, pkt *wire.Packet, place *wire.Placement, off uint32) (next uint32) {
	PutTaken.verdict(&pkt.Verdict, rq.wait)
	rq.delta.count(1, uint64(len(pkt.Header)), &bytesByMem{})
	for _, fc := range d.s.flowCounters {
		if fc.rx.flow == pkt.Meta.Headers.Flow {
			w := rq.mover.part(off, pkt.PayloadLen)
			fc.rx.count(&pkt.Meta.Headers, 1, uint64(len(pkt.Header)), uint64(pkt.PayloadLen), &w)
		}
	}
	if d.tap != nil {
		place.Payload = rq.mover.placed(off, pkt.PayloadLen)
		d.tap.Received(d.w, pkt, *place)
	}
	place.HeaderLen = 0 // of the first frame only
	return off + pkt.PayloadLen
}

package nic

import (
	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/nic/coalesce"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/splitter"
)

const (
	// maxMerges bounds a queue's open merges without Config.Hold: as many flows as Linux's GRO keeps in a hash
	// bucket (MAX_GRO_SKBS).
	maxMerges = 8
	// lookAhead is the number of packets behind a packet in which the function followed looks for the next one of
	// its flow.
	lookAhead = maxMerges
	// mergeSegments bounds the memory segments of the payload of a merge with more than one frame.
	mergeSegments = dma.KeepSegments
)

// merger merges frames of the same flow to GSO packets (receive coalescing). Its user holds the queue's lock.
type merger struct {
	limits wire.Limits // of the port's driver, as of the start of a batch
	holds  bool        // merges may outlive their batch (Config.Hold, hold.go)
	open   []merge     // the first n are in use, the oldest first
	n      int
	next   []int32 // by packet of the batch: the index of the next one in its merge; stale if it is the last
	pkt    wire.Packet
	hdr    [splitter.MaxHeader]byte
	store  *store // frames of merges that outlive their batch; made when needed
}

// merge is an open merge of frames of this batch and, with Config.Hold, of earlier ones.
type merge struct {
	coalesce.Merge
	route       route
	first, last int32 // if here > 0: indexes in this batch of its first and last frame there
	here        int   // number of its frames in this batch
	segments    int   // upper bound of the payload's memory segments: of held chunks and of this batch's frames
	checked     bool  // the first frame's checksum was checked
	alone       bool  // no frame may join: the first frame's checksum is not vouched for, or held frames have left
	held        *held // frames of earlier batches; nil: none, as always without Config.Hold
}

// merging returns the merger for a batch. nil: the queue merges none of the batch's packets; if coalescing was turned
// off, merging has then tried to end the open merges.
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

// take puts packet i of the batch into a merge. false: it is in none, and the caller must call rxQueue.one for it.
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
	default: // a packet of another class, such as a fragment or a tunnel's, may belong to the flow of any merge
		m.finish(d, rq, batch)
		return false
	}
	if m.holds && d.blocked.waitFor(r) != nil { // pkt must not overtake a packet that waits
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
		break // a flow has at most one open merge on a queue
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

// followed reports whether packet i of the batch is TCP with payload, and one of the lookAhead packets behind it has
// the next sequence number. That one may be of another flow.
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

// possible reports whether a packet with route r could be part of a merge. More checks follow (Begin, joins).
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

// longest returns the greatest length of a merged packet: the driver's limit, but at most MaxFrame.
func (m *merger) longest() uint32 {
	if m.limits.MaxBytes == 0 {
		return MaxFrame
	}
	return min(m.limits.MaxBytes, MaxFrame)
}

// joins reports whether a packet of merge g's flow may join g. Once in g, the packet has g's route, not its own.
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

// vouched calls coalesce.Vouched. It also returns false if it needs the payload's sum and cannot read the payload.
func vouched(c *dma.Copier, hdr []byte, m *splitter.Meta, payload []dma.Segment, n uint32) bool {
	var sum uint16
	if coalesce.NeedsSum(m) {
		var err error
		if sum, err = c.Sum(payload); err != nil {
			return false // copying the payload to the queue's buffers returns the error, too
		}
	}
	return coalesce.Vouched(hdr, m, n, sum)
}

// finish calls end for each merge, oldest first. A merge whose held frames must wait stays open.
func (m *merger) finish(d *delivery, rq *rxQueue, batch []*wire.Packet) {
	for k := 0; k < m.n; {
		if !m.end(d, rq, batch, k) {
			k++
		}
	}
}

// end ends merge k: it puts its frames into the queue as one packet if possible, else one by one. false: held frames
// of the merge must wait, for buffers or behind a packet that waits, and the merge stays open.
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
	m.open[m.n] = merge{} // drops its references, for the garbage collector
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

// part counts one frame of a merged packet, makes its Verdict Taken, and reports it to the tap, if there is one. off
// is where the frame's payload begins in the packet's payload, and next where the next frame's begins.
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
	place.HeaderLen = 0 // only the first frame's headers are in the buffers
	return off + pkt.PayloadLen
}

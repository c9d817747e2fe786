package nic

import (
	"runtime"
	"sync/atomic"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/lab/shape"
	"vnic.dev/vnic/internal/nic/flows"
	"vnic.dev/vnic/internal/wire"
)

// rxQueue is a receive queue; most of its state is under q's lock.
type rxQueue struct {
	q       RxQueue
	wait    wire.Waitable // senders wait for it
	mover   Mover
	frame   Frame
	merger  *merger      // made when needed
	holding atomic.Int32 // merges open between batches; written under q's lock
	delta   delta        // of this batch
	way     *shape.Route // of the last packet taken
	pieces  uint32       // memory segments of that packet's buffers
	in      control.DirCounters
	traffic Traffic
	flows   *flows.Shard // nil: no account
	unsplit counter      // frames that could not be split
	merged  counter      // frames in merged GSO packets
	merges  counter      // merged GSO packets

	exhaustion exhaustion
}

// blockedQueues are queues for which a packet of the batch waits. Later packets for them wait, too: none
// overtakes another one of its flow.
type blockedQueues struct {
	n     int
	queue [4]struct {
		home, q int
		wait    wire.Waitable
	}
	all wire.Waitable // more than four
}

// waitFor returns the queue for which a packet with route r must wait; nil: none.
func (s *blockedQueues) waitFor(r *route) wire.Waitable {
	for i := range s.n {
		switch b := &s.queue[i]; {
		case b.home == r.home:
			return b.wait
		case b.q == r.q:
			wait := b.wait
			s.add(r, wait) // for later packets of its flow on another queue
			return wait
		}
	}
	return s.all
}

func (s *blockedQueues) add(r *route, w wire.Waitable) {
	if s.n == len(s.queue) {
		s.all = w
		return
	}
	b := &s.queue[s.n]
	b.home, b.q, b.wait = r.home, r.q, w
	s.n++
}

// Deliver implements wire.Port.
func (p *Port) Deliver(w *wire.Worker, batch []*wire.Packet) {
	trouble := p.trouble.Load()
	if trouble&noCarrier != 0 {
		tap := p.tap()
		for _, pkt := range batch {
			pkt.Verdict = wire.Drop(wire.DropDisabled)
			if tap != nil {
				tap.Received(w, pkt, wire.Nowhere)
			}
		}
		return
	}
	if len(batch) == 0 {
		return
	}
	tok := p.space.Enter()
	defer p.space.Leave(tok)
	var d delivery // field by field: copying a struct just written would stall on store forwarding
	d.w, d.s, d.port = w, p.steering.Load(), p
	d.tap = p.tap()
	d.gate.shape = p.conf.Shape
	if p.rdma.active() {
		p.rdma.deliver(&d, batch, trouble)
		return
	}
	d.toQueues(batch, trouble)
}

func (d *delivery) toQueues(batch []*wire.Packet, trouble uint32) {
	var r route
	p := d.port
	for p.steer(d.s, batch[0], &r); len(batch) > 0; {
		rq := p.queues[r.q]
		if trouble&noBuffers != 0 { // on all queues: none overtakes another
			batch = batch[rq.refuse(d, batch, &r):]
			continue
		}
		if p.hold != nil && r.mayOvertake(batch[0]) {
			d.flushFor(&r)
		}
		n, call := rq.fill(d, batch, &r)
		if call {
			rq.q.Call()
		}
		batch = batch[n:]
	}
}

// delivery is the state of one call of Deliver.
type delivery struct {
	w       *wire.Worker
	s       *steering
	port    *Port
	tap     wire.Tap
	blocked blockedQueues
	gate    gate
}

// fill decides on the packets at the start of batch that go to queue r.q, and returns their number. It stops
// at a packet that may overtake a merge on another queue. r is the route of the first packet, and then of the
// next one. call: the caller must call q.Call.
func (rq *rxQueue) fill(d *delivery, batch []*wire.Packet, r *route) (n int, call bool) {
	rq.q.Lock()
	defer rq.q.Unlock()
	rq.mover.c, rq.mover.nodes = d.w.Copier, d.port.space.Nodes() > 0
	if d.blocked.waitFor(r) == nil && !rq.q.Admit(batch[0].From) {
		d.blocked.add(r, rq.wait)
	}
	m, holds := rq.merging(d, batch), d.port.hold != nil
	for q := r.q; r.q == q; {
		if d.gate.shape != nil && !rq.arrives(d, batch[n]) {
			// The packet waits for its links.
		} else if m == nil || !m.take(d, rq, batch, n, r) {
			rq.one(d, batch[n], r)
		}
		if n++; n == len(batch) {
			break
		}
		d.port.follow(d.s, r, batch[n-1], batch[n])
		if holds && r.mayOvertake(batch[n]) && d.port.holdsBeside(r.q) {
			break
		}
	}
	switch {
	case m == nil:
	case m.holds:
		m.keep(d, rq, batch)
	default:
		m.finish(d, rq, batch)
	}
	rq.tally()
	rq.q.Delivered(batch[:n])
	return n, rq.q.Flush()
}

// tally adds the delta to the counters, and drops references to frame and copier. The caller holds the
// queue's lock.
func (rq *rxQueue) tally() {
	rq.mover.c = nil
	rq.frame.Packet = nil
	rq.delta.addTo(&rq.in)
	if rq.flows != nil {
		rq.flows.Flush()
	}
}

func (rq *rxQueue) counters() control.DirCounters {
	rq.q.Lock()
	defer rq.q.Unlock()
	return rq.in
}

// one puts a packet into the queue, or drops it, or makes it Busy.
func (rq *rxQueue) one(d *delivery, pkt *wire.Packet, r *route) {
	if wait := d.blocked.waitFor(r); wait != nil {
		pkt.Verdict = wire.Verdict{Kind: wire.Busy, Queue: wait}
		return
	}
	res := rq.put(d.s, pkt, r)
	res.verdict(&pkt.Verdict, rq.wait)
	if res == PutTaken && d.gate.shape != nil {
		rq.took(d.gate.shape)
	}
	if res == PutNoBuffer {
		d.blocked.add(r, rq.wait)
	} else if d.tap != nil {
		d.tap.Received(d.w, pkt, rq.placement(r, pkt))
	}
}

func (rq *rxQueue) put(s *steering, pkt *wire.Packet, r *route) Result {
	rq.mover.begin()
	// Field by field, as in Deliver.
	f := &rq.frame
	f.Packet, f.Split, f.HeaderLen, f.Unsplit, f.Merged = pkt, r.split, r.hlen, r.unsplit, false
	f.Hashed, f.Hash = r.hashed, r.hash
	res := rq.q.Put(&rq.mover, &rq.frame)
	if res == PutNoBuffer {
		return res
	}
	if r.unsplit {
		rq.unsplit.add(1)
	}
	n := uint64(pkt.PayloadLen)
	segs, head := uint64(pkt.Segments()), uint64(len(pkt.Header))
	if res == PutTaken {
		rq.delta.count(segs, head, &rq.mover.byMem)
	} else {
		rq.delta.drop(n)
	}
	if a := rq.account(s, pkt); a != nil {
		if res == PutTaken {
			countFlow(a, pkt, uint32(segs), uint32(head), &rq.mover.byMem)
		} else {
			dropFlow(a, pkt, reasons[res])
		}
	}
	for _, m := range s.flowCounters {
		switch {
		case m.rx.flow != pkt.Meta.Headers.Flow:
		case res == PutTaken:
			m.rx.count(&pkt.Meta.Headers, segs, head, n, &rq.mover.byMem)
		default:
			m.rx.lose(n)
		}
	}
	return res
}

// account returns a packet's flow in the account of flows; nil: none.
func (rq *rxQueue) account(s *steering, pkt *wire.Packet) *flows.Acc {
	if rq.flows == nil {
		return nil
	}
	a := rq.flows.At(&pkt.Meta.Headers.Flow)
	if a.Fresh() {
		a.Rule, _ = s.rules.LookupID(&pkt.Meta.Headers.Flow)
	}
	return a
}

// placement describes where the packet just put lies; valid under the queue's lock.
func (rq *rxQueue) placement(r *route, pkt *wire.Packet) wire.Placement {
	place := wire.Placement{Queue: r.q, Split: r.split, HeaderLen: r.hlen, Unsplit: r.unsplit,
		Bounced: rq.mover.byMem.bounced > 0}
	if pkt.Verdict.Kind == wire.Taken {
		place.Payload = rq.mover.placed(0, pkt.PayloadLen)
	}
	return place
}

// ReportsPlacement implements wire.PlacementReporter.
func (p *Port) ReportsPlacement() {}

func (p *Port) tap() wire.Tap {
	if link := p.link.Load(); link != nil {
		return link.Tap()
	}
	return nil
}

// putOwn puts a frame of the control channel into receive queue 0, or into the backlog if there is no buffer. A
// frame that neither takes is lost.
func (p *Port) putOwn(c *dma.Copier, pkt *wire.Packet) {
	if res := p.tryOwn(c, pkt); res != PutNoBuffer || !p.backlog.add(pkt.Header) {
		p.lost(res)
	}
}

func (p *Port) lost(res Result) {
	if res != PutTaken {
		p.lostReplies.Add(1)
	}
}

func (p *Port) tryOwn(c *dma.Copier, pkt *wire.Packet) (res Result) {
	if p.exhausted() {
		return PutNoBuffer
	}
	rq := p.queues[0]
	p.with(rq, func() { res = rq.putOwn(c, pkt) })
	return res
}

// putOwn puts a frame of the control channel into the queue. The caller holds its lock.
func (rq *rxQueue) putOwn(c *dma.Copier, pkt *wire.Packet) Result {
	rq.mover.c = c
	rq.frame = Frame{Packet: pkt}
	res := rq.q.Put(&rq.mover, &rq.frame)
	rq.mover.c = nil
	rq.frame.Packet = nil
	return res
}

// with calls f under a queue's lock, inside the address space's epoch, and then interrupts the driver if
// needed.
func (p *Port) with(rq *rxQueue, f func()) {
	tok := p.space.Enter()
	defer p.space.Leave(tok)
	if rq.locked(f) {
		rq.q.Call()
	}
}

func (rq *rxQueue) locked(f func()) (call bool) {
	rq.q.Lock()
	defer rq.q.Unlock()
	f()
	return rq.q.Flush()
}

const (
	returnPiece = 256     // buffers under one hold of the lock
	maxReturned = 1 << 15 // buffers of the largest ring: the driver may go on posting
)

// returnBuffers returns a queue's posted buffers to its driver before split is turned off. The caller holds
// neither the queue's lock nor the port's mu.
func (p *Port) returnBuffers(queue uint16) {
	rq := p.queues[queue]
	r, ok := rq.wait.(Returner) // the model's, also with Sabotage
	if !ok {
		return
	}
	for all, n := 0, returnPiece; n == returnPiece && all < maxReturned; all += n {
		p.with(rq, func() { n = r.Return(returnPiece) })
		runtime.Gosched() // for waiters of the lock
	}
}

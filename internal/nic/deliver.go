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

// rxQueue is a receive queue with what the port keeps for it, used under q's lock.
type rxQueue struct {
	q       RxQueue
	wait    wire.Waitable // q, for those that wait for it
	mover   Mover
	frame   Frame
	merger  *merger      // made when frames are first merged
	holding atomic.Int32 // merges that are open between batches; written under q's lock
	delta   delta        // of this batch
	way     *shape.Route // of the last packet
	pieces  uint32       // likewise: of memory
	in      control.DirCounters
	traffic Traffic
	flows   *flows.Shard // nil: flows are not counted
	unsplit counter      // frames that came here because, or although, they could not be split
	merged  counter      // frames that came as part of a GSO packet, of which the merger made
	merges  counter      // so many

	exhaustion exhaustion
}

// blockedQueues remembers which queues lacked buffers in a batch, so that nothing overtakes a
// packet of its own flow: neither on the same queue nor by way of the one for what cannot be split.
type blockedQueues struct {
	n     int
	queue [4]struct {
		home, q int
		wait    wire.Waitable
	}
	all wire.Waitable // more than four: everything waits
}

// waitFor gives the queue that a packet has to wait for, nil if none.
func (s *blockedQueues) waitFor(r *route) wire.Waitable {
	for i := range s.n {
		switch b := &s.queue[i]; {
		case b.home == r.home:
			return b.wait
		case b.q == r.q:
			wait := b.wait
			s.add(r, wait) // for the rest of its flow, which may go elsewhere
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
	var d delivery // field by field: a copy of what was just written would wait for it
	d.w, d.s, d.port = w, p.steering.Load(), p
	d.tap = p.tap()
	d.gate.shape = p.conf.Shape
	if p.rdma.active() {
		p.rdma.deliver(&d, batch, trouble)
		return
	}
	d.toQueues(batch, trouble)
}

// toQueues puts a batch into receive queues.
func (d *delivery) toQueues(batch []*wire.Packet, trouble uint32) {
	var r route
	p := d.port
	for p.steer(d.s, batch[0], &r); len(batch) > 0; {
		rq := p.queues[r.q]
		if trouble&noBuffers != 0 { // all of the batch: nothing overtakes its flow
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

// delivery is a Deliver on its way.
type delivery struct {
	w       *wire.Worker
	s       *steering
	port    *Port
	tap     wire.Tap // nil: none
	blocked blockedQueues
	gate    gate
}

// fill puts the run of packets at the start of batch that go to r.q into that queue, under its
// lock, and returns how many those are; r is the first one's route, and then that of the packet
// behind the run.
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
			// It waits.
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

// tally ends a use of the queue, whose lock is held: it adds what was counted to the counters that others read, and
// forgets the frame and the copier.
func (rq *rxQueue) tally() {
	rq.mover.c = nil
	rq.frame.Packet = nil
	rq.delta.addTo(&rq.in)
	if rq.flows != nil {
		rq.flows.Flush()
	}
}

// counters reads what the queue counted.
func (rq *rxQueue) counters() control.DirCounters {
	rq.q.Lock()
	defer rq.q.Unlock()
	return rq.in
}

// one puts one packet into the queue.
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
	// One by one: a processor waits for narrow writes to be done before it reads them at once, to copy a whole Frame.
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
	for _, m := range s.meters {
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

// account gives what this use of the queue adds to a packet's flow, nil if flows are not counted.
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

// placement says where the packet lies that was just put, for as long as the lock is held.
func (rq *rxQueue) placement(r *route, pkt *wire.Packet) wire.Placement {
	at := wire.Placement{Queue: r.q, Split: r.split, HeaderLen: r.hlen, Unsplit: r.unsplit,
		Bounced: rq.mover.byMem.bounced > 0}
	if pkt.Verdict.Kind == wire.Taken {
		at.Payload = rq.mover.placed(0, pkt.PayloadLen)
	}
	return at
}

// ReportsPlacement implements wire.PlacementReporter.
func (p *Port) ReportsPlacement() {}

// tap is the tap of the port's link, nil if there is none.
func (p *Port) tap() wire.Tap {
	if link := p.link.Load(); link != nil {
		return link.Tap()
	}
	return nil
}

// putOwn puts a frame of our own into receive queue 0: the control channel's. It never waits;
// without a buffer the frame goes there as soon as there is one.
func (p *Port) putOwn(c *dma.Copier, pkt *wire.Packet) {
	if res := p.tryOwn(c, pkt); res != PutNoBuffer || !p.backlog.add(pkt.Header) {
		p.lost(res)
	}
}

// lost counts a frame of our own that was not taken; the driver repeats its request.
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

// putOwn puts a frame of our own into the queue, whose lock is held.
func (rq *rxQueue) putOwn(c *dma.Copier, pkt *wire.Packet) Result {
	rq.mover.c = c
	rq.frame = Frame{Packet: pkt}
	res := rq.q.Put(&rq.mover, &rq.frame)
	rq.mover.c = nil
	rq.frame.Packet = nil
	return res
}

// with has f use a receive queue under its lock, inside the epoch, and then tells the driver.
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
	returnPiece = 256     // posted buffers that are returned under one hold of a queue's lock
	maxReturned = 1 << 15 // in all: as many as a ring has. A driver that goes on posting is not waited for
)

// returnBuffers returns the posted buffers of a queue whose split is to be turned off: it has no use
// for header buffers and GPU pages. The caller need not be inside the epoch, and holds no lock that
// others wait for: between pieces frames pass, and the driver is called.
func (p *Port) returnBuffers(queue uint16) {
	rq := p.queues[queue]
	r, ok := rq.wait.(Returner) // the model's own, whatever is in its place (Sabotage)
	if !ok {
		return
	}
	for all, n := 0, returnPiece; n == returnPiece && all < maxReturned; all += n {
		p.with(rq, func() { n = r.Return(returnPiece) })
		runtime.Gosched() // to those that wait for the lock
	}
}

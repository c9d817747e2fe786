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

// rxQueue is the port's part of a receive queue; most of its state is under q's lock.
type rxQueue struct {
	q       RxQueue       // the device model's queue, or a wrapper of it by Sabotage
	wait    wire.Waitable // the device model's queue, for whose buffers senders wait
	mover   Mover
	frame   Frame
	merger  *merger      // made when needed
	holding atomic.Int32 // number of merges open between batches; written under q's lock
	delta   delta        // counts since the last tally
	way     *shape.Route // with a Shape: links of the last packet taken; until the first, nil or Rx.Host
	pieces  uint32       // memory segments of that packet's buffers; 0 until the first
	in      control.DirCounters
	traffic Traffic
	flows   *flows.Shard // nil: the port keeps no account of flows
	unsplit counter      // frames with Frame.Unsplit, taken or dropped
	merged  counter      // frames in merged GSO packets
	merges  counter      // merged GSO packets

	exhaustion exhaustion
}

// blockedQueues are queues for which an earlier packet waits, of this batch or held in a merge. Later packets for them
// wait, too: none overtakes another one of its flow.
type blockedQueues struct {
	n     int
	queue [4]struct {
		home, q int
		wait    wire.Waitable
	}
	all wire.Waitable // if more than four are blocked: what packets for other queues wait for; else nil
}

// waitFor returns the queue that a packet with route r must wait for; nil: none.
func (s *blockedQueues) waitFor(r *route) wire.Waitable {
	for i := range s.n {
		switch b := &s.queue[i]; {
		case b.home == r.home:
			return b.wait
		case b.q == r.q:
			wait := b.wait
			s.add(r, wait) // so that later packets of r's flow wait, whichever queue they go to
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
	var d delivery // it is set field by field: copying a struct just written would stall on store forwarding
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
		if trouble&noBuffers != 0 { // it holds for all queues, so no packet overtakes another
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

// delivery is the state of one call of Deliver, or of rxQueue.flush.
type delivery struct {
	w       *wire.Worker
	s       *steering
	port    *Port
	tap     wire.Tap
	blocked blockedQueues
	gate    gate
}

// fill merges, puts or drops the packets at the start of batch that go to queue r.q, or makes them Busy, and returns
// their number. It stops early at a packet that may overtake a merge on another queue. r is the route of batch[0];
// fill sets it to that of batch[n], if there is one. call: the caller must call q.Call.
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
			// The packet waits for its PCIe links, and is Busy.
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

// tally adds the delta and the flows' counts to the counters, and drops the references to the packet and the copier.
// The caller holds the queue's lock.
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

// one puts a single packet into the queue, or drops it, or makes it Busy.
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
	// The fields are set one by one, for the reason given in Deliver.
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

// account returns the counts of a packet's flow in the account of flows; nil: the port keeps none.
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

// placement describes where the packet just put lies. Its Payload is valid until the next packet, and nil if the
// packet was not taken. The caller holds the queue's lock.
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
// frame that the queue refuses for another reason, or for which the backlog has no room, is lost.
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

// putOwn puts a frame of the control channel into the queue. The caller holds the queue's lock.
func (rq *rxQueue) putOwn(c *dma.Copier, pkt *wire.Packet) Result {
	rq.mover.c = c
	rq.frame = Frame{Packet: pkt}
	res := rq.q.Put(&rq.mover, &rq.frame)
	rq.mover.c = nil
	rq.frame.Packet = nil
	return res
}

// with calls f under a queue's lock, inside the address space's epoch. After it has released the lock, it interrupts
// the driver if needed.
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
	returnPiece = 256     // most buffers returned under one hold of the lock
	maxReturned = 1 << 15 // most buffers returned, as many as the largest ring has: the driver may go on posting
)

// returnBuffers returns the posted buffers of a queue that is a Returner to its driver, before split is turned off. The
// caller holds neither the queue's lock nor the port's mu.
func (p *Port) returnBuffers(queue uint16) {
	rq := p.queues[queue]
	r, ok := rq.wait.(Returner) // wait is the model's queue, also with Sabotage
	if !ok {
		return
	}
	for all, n := 0, returnPiece; n == returnPiece && all < maxReturned; all += n {
		p.with(rq, func() { n = r.Return(returnPiece) })
		runtime.Gosched() // lets goroutines run that wait for the lock
	}
}

package nic

import (
	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/splitter"
	"vnic.dev/vnic/wire"
)

// rxQueue is a receive queue with what the port keeps for it. All but policy is used under q's lock.
type rxQueue struct {
	q       RxQueue
	mover   Mover
	frame   Frame
	in      Counters
	unsplit counter // frames that could not be split and went where the personality wants them
}

// steering is what decides the queue and the split of a received packet; immutable, replaced whole.
type steering struct {
	rss    *splitter.RSS
	limit  uint32 // HeaderLimit
	unsp   int    // queue for frames that cannot be split, or -1: their own
	splits []splitPolicy
}

type splitPolicy struct {
	on        bool
	threshold uint32
}

// steer finds the receive queue of a packet, and whether and where it is split.
func (p *Port) steer(s *steering, m *splitter.Meta, payload uint32) (q int, split bool, hlen uint32) {
	h := &m.Headers
	if h.Class != splitter.NotIP && h.Class != splitter.Malformed {
		if to, ok := p.rules.Lookup(&h.Flow); ok {
			q = int(to)
		} else if len(s.rss.Table) > 1 {
			q = int(s.rss.Queue(s.rss.Hash(&h.Flow)))
		} else {
			q = int(s.rss.Table[0])
		}
	}
	if q >= len(s.splits) || q >= len(p.queues) {
		q = 0
	}
	pol := &s.splits[q]
	if !pol.on || payload < pol.threshold {
		return q, false, 0
	}
	n, ok := h.SplitLen(s.limit)
	if !ok {
		if s.unsp >= 0 {
			q = s.unsp
		}
		return q, false, 0
	}
	return q, true, n
}

// Deliver implements wire.Port.
func (p *Port) Deliver(w *wire.Worker, batch []*wire.Packet) {
	tok := p.space.Enter()
	defer p.space.Leave(tok)
	s := p.steering.Load()
	var busy queueSet
	for i := 0; i < len(batch); {
		q, split, hlen := p.steer(s, &batch[i].Meta, batch[i].PayloadLen)
		rq := p.queues[q]
		call := rq.fill(w, s, p, batch, &i, q, split, hlen, &busy)
		if call {
			rq.q.Call()
		}
	}
}

// fill puts the run of packets that starts at batch[*i] and goes to queue q into it, under its lock.
func (rq *rxQueue) fill(w *wire.Worker, s *steering, p *Port, batch []*wire.Packet, i *int, q int, split bool, hlen uint32, busy *queueSet) (call bool) {
	rq.q.Lock()
	defer rq.q.Unlock()
	rq.mover.c = w.Copier
	for {
		pkt := batch[*i]
		if busy.has(q) {
			pkt.Verdict = wire.Verdict{Kind: wire.Busy, Queue: rq.q}
		} else {
			res := rq.put(p, pkt, split, hlen)
			pkt.Verdict = res.verdict(rq.q)
			if res == PutNoBuffer {
				busy.add(q)
			}
		}
		*i++
		if *i == len(batch) {
			break
		}
		var to int
		if to, split, hlen = p.steer(s, &batch[*i].Meta, batch[*i].PayloadLen); to != q {
			break
		}
	}
	rq.mover.c = nil
	rq.frame.Packet = nil
	return rq.q.Flush()
}

func (rq *rxQueue) put(p *Port, pkt *wire.Packet, split bool, hlen uint32) Result {
	rq.mover.where = where{}
	rq.frame = Frame{Packet: pkt, Split: split, HeaderLen: hlen}
	res := rq.q.Put(&rq.mover, &rq.frame)
	switch res {
	case PutTaken:
		segs, head := uint64(pkt.Segments()), uint64(len(pkt.Header))
		rq.in.count(segs, head, &rq.mover.where)
		if ms := p.meters.Load(); len(*ms) > 0 {
			for _, m := range *ms {
				if m.rx.flow == pkt.Meta.Headers.Flow {
					m.rx.count(&pkt.Meta.Headers, segs, head, uint64(pkt.PayloadLen), &rq.mover.where)
				}
			}
		}
	case PutNoBuffer:
	default:
		rq.in.drop(uint64(pkt.PayloadLen))
	}
	return res
}

// put1 puts a frame of our own into receive queue 0: the control channel's. It never waits; without a buffer the frame
// is lost, which the other end makes good.
func (p *Port) put1(c *dma.Copier, pkt *wire.Packet) bool {
	tok := p.space.Enter()
	defer p.space.Leave(tok)
	rq := p.queues[0]
	call, ok := rq.put1(c, pkt)
	if call {
		rq.q.Call()
	}
	return ok
}

func (rq *rxQueue) put1(c *dma.Copier, pkt *wire.Packet) (call, ok bool) {
	rq.q.Lock()
	defer rq.q.Unlock()
	rq.mover.c = c
	rq.mover.where = where{}
	rq.frame = Frame{Packet: pkt}
	ok = rq.q.Put(&rq.mover, &rq.frame) == PutTaken
	rq.mover.c = nil
	rq.frame.Packet = nil
	return rq.q.Flush(), ok
}

// giveBack returns what is posted on a queue whose split has gone off: header buffers and GPU pages are no use to it. The
// caller is a transmit worker, inside the epoch.
func (rq *rxQueue) giveBack() {
	r, ok := rq.q.(Returner)
	if !ok {
		return
	}
	if rq.returned(r) {
		rq.q.Call()
	}
}

func (rq *rxQueue) returned(r Returner) (call bool) {
	rq.q.Lock()
	defer rq.q.Unlock()
	r.Return()
	return rq.q.Flush()
}

// queueSet is a set of receive queues.
type queueSet [MaxQueuePairs / 64]uint64

func (s *queueSet) has(q int) bool { return s[q/64]&(1<<(q%64)) != 0 }
func (s *queueSet) add(q int)      { s[q/64] |= 1 << (q % 64) }

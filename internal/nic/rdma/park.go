package rdma

import (
	"sync"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/control"
)

type parkedPool struct {
	mu    sync.Mutex // a goroutine that holds it takes no other lock
	taken int        // bytes in use, of parkedBytes
}

const parkedBytes = 256 << 10

// get returns memory for a packet's payload of n bytes; nil: too little of parkedBytes is left.
func (p *parkedPool) get(n uint32) *dma.Region {
	n = max(n, 64)
	p.mu.Lock()
	defer p.mu.Unlock()
	if int(n) > parkedBytes-p.taken {
		return nil
	}
	p.taken += int(n)
	return dma.NewBuffer(make([]byte, n), dma.Private)
}

func (p *parkedPool) put(r *dma.Region) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken -= int(r.Size())
}

// parkedPackets are a queue pair's packets that wait for a page, or behind one that does, with consecutive numbers from
// the expected one on.
type parkedPackets struct {
	list     []parkedPacket
	requests int    // receive requests that the list uses up
	waiting  bool   // the first one in list waits for a page
	resumed  bool   // unpark is carrying out the first one again
	lost     bool   // later packets have been dropped
	key      uint32 // of the region for which countPaged was last called; 0: none
}

type parkedPacket struct {
	h   header
	n   uint32
	mem *dma.Region
}

// park keeps a packet, whose payload is n bytes of q.src, until its page is there, or queues an RNR NAK if it cannot. A
// packet that unpark is carrying out again stays in list.
func (q *qp) park(c *dma.Copier, h *header, n uint32) {
	p := &q.resp.parked
	p.waiting = true
	if p.resumed {
		return
	}
	if q.keep(c, h, n) {
		return
	}
	p.waiting = false
	q.countPaged(h, func(c *control.PageCounts) { c.NotReady++ })
	q.refuse(synRNR | q.path.RNRTimer)
}

func (q *qp) keep(c *dma.Copier, h *header, n uint32) bool {
	p := &q.resp.parked
	mem := q.e.paging.parked.get(n)
	if mem == nil {
		return false
	}
	to := [1]dma.Segment{mem.Segment(0, n)}
	if n > maxMTU || copyAll(c, to[:], q.src, n) != nil {
		q.e.paging.parked.put(mem)
		return false
	}
	q.countPaged(h, func(c *control.PageCounts) {
		c.Parked++
		c.ParkedBytes += uint64(n)
	})
	p.list = append(p.list, parkedPacket{*h, n, mem})
	p.requests += h.takes()
	return true
}

// parkMore handles a packet that comes while others are parked; d is its distance from the expected one. It parks the
// packet if it is the next one, and no READ's request, and there is memory. It answers a packet before the expected
// one, ignores one that is parked already, and drops any other.
func (q *qp) parkMore(c *dma.Copier, h *header, n uint32, d int32) {
	p := &q.resp.parked
	switch {
	case d < 0:
		q.again(h)
	case int(d) < len(p.list):
		q.in.AgainPackets++
	case int(d) == len(p.list) && h.op != opReadRequest && q.keep(c, h, n):
	default:
		q.in.Discarded++
		q.countPaged(h, func(c *control.PageCounts) { c.NotReady++ })
		p.lost = true
	}
}

// unpark carries out parked packets until a page is missing or one is refused. When all are carried out, it queues a
// NAK if later packets have been dropped (lost).
func (q *qp) unpark() {
	p := &q.resp.parked
	for len(p.list) > 0 && !p.waiting {
		first := p.list[0]
		q.src = append(dma.Reuse(q.src), first.mem.Segment(0, first.n))
		p.resumed = true
		q.carryOut(q.e.copier, &first.h, first.n)
		p.resumed = false
		if p.waiting || len(p.list) == 0 { // the first packet waits again, or has failed, which drops the list
			return
		}
		q.e.paging.parked.put(first.mem)
		p.list = append(p.list[:0], p.list[1:]...)
		p.requests -= first.h.takes()
		if q.resp.refused { // the peer sends this packet and the following ones again
			q.dropParked()
			return
		}
	}
	if len(p.list) == 0 && p.lost {
		p.lost = false
		if q.state == control.QPReady {
			q.refuse(nakSequence)
		}
	}
}

func (q *qp) dropParked() {
	p := &q.resp.parked
	for _, k := range p.list {
		q.e.paging.parked.put(k.mem)
	}
	p.list, p.requests, p.waiting, p.lost = p.list[:0], 0, false, false
}

// countPaged finds the region for the packet h, which comes after the parked ones, and calls f with the region's
// counters if it is on demand.
func (q *qp) countPaged(h *header, f func(c *control.PageCounts)) {
	p, s := &q.resp.parked, &shapes[h.op]
	switch {
	case s.reth:
		p.key = h.key
	case s.send && (s.first || len(p.list) == 0):
		p.key = q.keyOfSend()
	case len(p.list) == 0:
		p.key = q.resp.key
	}
	if r := q.e.regionOf(p.key); r != nil && r.pages != nil {
		q.e.paging.mu.Lock()
		f(&r.pages.counts)
		q.e.paging.mu.Unlock()
	}
}

// takes returns how many receive requests a packet uses up: 1 at the end of a SEND, or with immediate data.
func (h *header) takes() int {
	if s := &shapes[h.op]; s.last && s.send || s.imm {
		return 1
	}
	return 0
}

// keyOfSend returns the key of the first region on demand in the receive request that is left after the parked packets;
// 0: none.
func (q *qp) keyOfSend() uint32 {
	if taken := q.resp.parked.requests; taken < q.nRecv {
		r := &q.recvs[(q.firstRecv+taken)%len(q.recvs)]
		for _, g := range r.sges[:r.n] {
			if q.e.isPaged(g.Key) {
				return g.Key
			}
		}
	}
	return 0
}

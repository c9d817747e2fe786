package rdma

import (
	"encoding/binary"
	"hash/crc32"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/splitter"
)

// slot is a frame under way. Its payload was copied to here: what is on its way does not change with the memory that it
// came from, which may be written, moved or taken away meanwhile, and its ICRC stays right.
type slot struct {
	head    []byte // Ethernet, IP and UDP
	mem     []byte // the headers behind them, the payload from payloadAt on, padding, the ICRC
	region  *dma.Region
	need    uint8
	pieces  []control.SGE // where the payload is from, in memory regions
	segs    []dma.Segment // and where that lies
	bounced bool          // by way of host memory
}

const (
	payloadAt = maxExt
	maxMTU    = 4096
)

func (s *slot) init() {
	s.head = make([]byte, 0, 14+40+8)
	s.mem = make([]byte, payloadAt+maxMTU+icrcLen)
	s.region = dma.NewBuffer(s.mem, dma.Private)
	s.pieces = make([]control.SGE, 0, control.MaxSGEs)
}

// frame is one that is being made.
type frame struct {
	*slot
	p *wire.Packet
}

// cut appends to dst the part [off, off+n) of memory in pieces; ok says that there is so much, and no address wraps.
func cut(dst, sges []control.SGE, off, n uint32) (pieces []control.SGE, ok bool) {
	for _, g := range sges {
		if off >= g.Len {
			off -= g.Len
			continue
		}
		if n == 0 {
			break
		}
		k, va := min(n, g.Len-off), g.VA+uint64(off)
		if va < g.VA {
			return dst, false
		}
		dst = append(dst, control.SGE{VA: va, Len: k, Key: g.Key})
		off, n = 0, n-k
	}
	return dst, n == 0
}

// find finds the payload's places; ahead bytes of the last piece from its begin on will be wanted soon.
func (q *qp) find(s *slot, ahead uint64) (outcome, bool) {
	s.segs = dma.Reuse(s.segs)
	paged := false
	for _, g := range s.pieces {
		var got outcome
		if s.segs, got = q.resolve(s.segs, g.Key, g.VA, uint64(g.Len), ahead, s.need, dma.Read); got != found {
			return got, paged
		}
		paged = paged || q.e.isPaged(g.Key)
	}
	return found, paged
}

// load copies the payload into the frame. Where the NIC does not reach the GPU that it is in, this is a copy that the
// GPU's engine makes to host memory.
func (q *qp) load(f frame, ahead uint32, count *control.RDMACounts) outcome {
	got, paged := q.find(f.slot, uint64(ahead))
	if got != found {
		return got
	}
	n := int(dma.Len(f.segs))
	if n == 0 {
		return found
	}
	if k, err := q.e.copier.Read(f.mem[payloadAt:payloadAt+n], f.segs); err != nil || k != n {
		return faulted
	}
	f.bounced = !q.e.c.Direct(f.segs)
	q.tallyTo(count, f.segs, uint32(n), f.bounced, paged)
	return found
}

// build makes the frame of a packet whose payload, n bytes, is loaded.
func (q *qp) build(f frame, h *header, n uint32) {
	h.pad = uint8(-n & 3)
	at := payloadAt - h.length()
	ext := h.append(f.mem[at:at])
	end := payloadAt + n + uint32(h.pad)
	copy(f.mem[payloadAt+n:end], zeros[:])
	if n == 0 {
		f.segs, f.bounced = dma.Reuse(f.segs), false
	}
	size := end - at + icrcLen
	head := append(f.head[:0], q.frame...)
	l4 := len(head) - 8
	if q.path.Remote.Is4() {
		binary.BigEndian.PutUint16(head[splitter.EthLen+2:], uint16(20+8+size))
	} else {
		binary.BigEndian.PutUint16(head[splitter.EthLen+4:], uint16(8+size))
	}
	binary.BigEndian.PutUint16(head[l4+4:], uint16(8+size))
	*f.p = wire.Packet{Payload: dma.Reuse(f.p.Payload), Header: head, PayloadLen: size}
	m := &f.p.Meta
	_ = splitter.Parse(head, uint32(len(head))+size, &m.Headers) // they are ours, and right
	splitter.FixIPv4(&m.Headers, head)
	m.Csum = splitter.CsumGood // RoCEv2 has none: its ICRC is in its place
	sum := crc32.Update(invariant(&q.e.head, &m.Headers, head, ext), crc32.IEEETable, f.mem[payloadAt:end])
	binary.LittleEndian.PutUint32(f.mem[end:], sum)
	f.p.Payload = append(f.p.Payload, f.region.Segment(uint64(at), size))
	f.p.Prepare()
}

// Next makes the next frame of those to be sent, in a packet and the memory of a slot; false: there is none. The worker
// calls it, inside the address space. The frame stays as it is until the slot's next one.
func (e *Engine) Next(at int, p *wire.Packet) bool {
	token := e.users.Enter()
	defer e.users.Leave(token)
	for {
		if e.cur == nil {
			if e.cur = e.pop(); e.cur == nil {
				return false
			}
			e.left = burst
		}
		q := e.cur
		if q.emit(frame{&e.slots[at], p}) {
			p.Tag = uint64(at)
			if e.left--; e.left == 0 {
				e.cur = nil
				e.schedule(q)
			}
			return true
		}
		e.cur = nil
	}
}

// Pending says whether Next may find something.
func (e *Engine) Pending() bool {
	if e.cur != nil {
		return true
	}
	e.runMu.Lock()
	some := len(e.run)+len(e.tells) > 0
	e.runMu.Unlock()
	return some || e.paging.pending() // whose lock is not taken under ours: who has it may want the timer
}

func (e *Engine) pop() *qp {
	e.runMu.Lock()
	defer e.runMu.Unlock()
	if len(e.run) == 0 {
		return nil
	}
	q := e.run[0]
	e.run = append(e.run[:0], e.run[1:]...)
	q.queued.Store(false) // before it is looked at: what comes later puts it there again
	return q
}

// TellAll tells the driver what it is to be told. The worker calls it, outside of all locks.
func (e *Engine) TellAll() {
	e.runMu.Lock()
	e.telling = append(e.telling[:0], e.tells...)
	e.tells = e.tells[:0]
	e.runMu.Unlock()
	for _, id := range e.telling {
		e.c.Tell(id)
	}
	e.paging.askAll()
}

// Payload says where the payload of a frame came from, by its packet's Tag, and whether it went through host memory.
func (e *Engine) Payload(at uint64) (segs []dma.Segment, bounced bool) {
	return e.slots[at].segs, e.slots[at].bounced
}

// emit makes a packet of a queue pair: ACKs and NAKs first, so that a peer that waits for them goes on.
func (q *qp) emit(f frame) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.dead {
		return false
	}
	if due := q.due.Load(); due != 0 {
		if t := q.e.now(); t >= due {
			q.overdue(t)
		}
	}
	q.unpark()
	// Of the answers to READs, which may be without end, and of its own requests each has every second turn.
	if q.resp.answering() && !q.lastOwn && q.state == control.QPReady && q.emitRequest(f) {
		q.lastOwn = true
		return true
	}
	if q.emitAnswer(f) {
		q.lastOwn = false
		return true
	}
	return q.state == control.QPReady && q.emitRequest(f)
}

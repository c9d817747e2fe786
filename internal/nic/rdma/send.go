package rdma

import (
	"encoding/binary"
	"hash/crc32"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/splitter"
)

// slot holds a frame in flight. The payload is a copy, so that the ICRC stays right when the guest writes
// to the memory from which the payload comes.
type slot struct {
	head    []byte // Ethernet, IP and UDP headers
	mem     []byte // headers after UDP's, payload (at payloadAt), padding, ICRC
	region  *dma.Region
	need    uint8
	pieces  []control.SGE // source of the payload
	segs    []dma.Segment
	bounced bool // the payload comes from a GPU, and went through host memory
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

type frame struct {
	*slot
	p *wire.Packet
}

// cut appends the part [off, off+n) of sges, taken together, to dst. ok reports whether sges has these bytes and
// the address of no appended piece's first byte wraps.
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

// find sets s.segs to the memory of s.pieces. If a page on demand is missing, it may request pages for ahead bytes
// from the start of the piece. On success it also reports whether a piece is in a region on demand.
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

// load copies the payload from f.pieces into the frame, and adds it to count. ahead is as in find.
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

// build makes the frame of a packet with n bytes of payload, which load has copied into the frame.
func (q *qp) build(f frame, h *header, n uint32) {
	h.pad = uint8(-n & 3)
	start := payloadAt - h.length()
	ext := h.append(f.mem[start:start])
	end := payloadAt + n + uint32(h.pad)
	copy(f.mem[payloadAt+n:end], zeros[:])
	if n == 0 {
		f.segs, f.bounced = dma.Reuse(f.segs), false
	}
	size := end - start + icrcLen
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
	_ = splitter.Parse(head, uint32(len(head))+size, &m.Headers) // never fails for our headers
	splitter.FixIPv4(&m.Headers, head)
	m.Csum = splitter.CsumGood // the UDP checksum is 0: the ICRC replaces it
	sum := crc32.Update(invariant(&q.e.head, &m.Headers, head, ext), crc32.IEEETable, f.mem[payloadAt:end])
	binary.LittleEndian.PutUint32(f.mem[end:], sum)
	f.p.Payload = append(f.p.Payload, f.region.Segment(uint64(start), size))
	f.p.Prepare()
}

// Next makes the next frame in p and slot number index; false: there is none now. The caller is the worker, and is
// inside the Space's epoch. The frame is valid until the next call for the same slot.
func (e *Engine) Next(index int, p *wire.Packet) bool {
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
		if q.emit(frame{&e.slots[index], p}) {
			p.Tag = uint64(index)
			if e.left--; e.left == 0 {
				e.cur = nil
				e.schedule(q)
			}
			return true
		}
		e.cur = nil
	}
}

// Pending reports whether Next may find a frame, or TellAll has something to send.
func (e *Engine) Pending() bool {
	if e.cur != nil {
		return true
	}
	e.runMu.Lock()
	some := len(e.run)+len(e.tells) > 0
	e.runMu.Unlock()
	return some || e.paging.pending() // not under runMu: a goroutine that holds paging's lock may lock runMu
}

func (e *Engine) pop() *qp {
	e.runMu.Lock()
	defer e.runMu.Unlock()
	if len(e.run) == 0 {
		return nil
	}
	q := e.run[0]
	e.run = append(e.run[:0], e.run[1:]...)
	q.queued.Store(false) // before emit: new work schedules it again
	return q
}

// TellAll sends the driver the pending notices of completions and requests for pages. The caller is the worker, and
// holds no lock.
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

// Payload returns the source of the payload of the frame whose packet's Tag is index, and reports whether the payload
// went through host memory.
func (e *Engine) Payload(index uint64) (segs []dma.Segment, bounced bool) {
	return e.slots[index].segs, e.slots[index].bounced
}

// emit makes a packet of a queue pair; false: none now.
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
	// Requests and packets of answers to READs take turns: a peer's READs may never end.
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

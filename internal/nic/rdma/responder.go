package rdma

import (
	"errors"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/control"
)

// responder is the half of a queue pair that carries out the peer's requests (9.7.4, 9.9).
type responder struct {
	psn     uint32 // number of the expected packet
	msn     uint32 // messages carried out, modulo 2^24; of READs, when accepted (9.7.7)
	refused bool   // refuse was called for psn

	// State of a WRITE or SEND of several packets, while inWrite or inSend is set.
	inWrite, inSend bool
	va              uint64 // WRITE: address of the next byte
	key             uint32
	left            uint32
	off             uint32 // bytes received

	answers []answer // ring, in the order of sending
	first   int
	n       int
	nReads  int
	nAgain  int // answers to repeated READs

	parked parkedPackets
}

// answer is an ACK or a NAK to send, or the packets still to send of a READ's answer.
type answer struct {
	read     bool
	again    bool // to a repeated READ
	syndrome uint8
	psn      uint32 // number in the ACK or NAK, or of the next packet of the READ's answer
	msn      uint32
	key      uint32
	va       uint64 // address of the next byte
	left     uint32
	begun    bool
	waiting  bool // the READ's answer waits for a page
}

func (p *responder) last() *answer { return &p.answers[(p.first+p.n-1)%len(p.answers)] }

func (p *responder) push(a answer) bool {
	if p.n == len(p.answers) {
		return false
	}
	p.n++
	*p.last() = a
	p.count(&a, 1)
	return true
}

func (p *responder) count(a *answer, n int) {
	switch {
	case a.again:
		p.nAgain += n
	case a.read:
		p.nReads += n
	}
}

func (p *responder) pop() {
	p.count(&p.answers[p.first], -1)
	p.first, p.n = (p.first+1)%len(p.answers), p.n-1
}

func (p *responder) answering() bool { return p.n > 0 && p.answers[p.first].read }

func (p *responder) dropReads() {
	for n := p.n; n > 0; n-- {
		a := p.answers[p.first]
		p.pop()
		if !a.read {
			p.push(a)
		}
	}
}

// acknowledge queues an ACK of the packets before the expected one. The ACK replaces the newest unsent answer if
// this is an ACK too.
func (q *qp) acknowledge() {
	p := &q.resp
	a := answer{syndrome: synAck, psn: after(p.psn, psnMask), msn: p.msn}
	if p.n > 0 && !p.last().read && p.last().syndrome == synAck {
		*p.last() = a
	} else {
		p.push(a) // if the ring is full, the peer will send its request again
	}
	q.e.schedule(q)
}

// refuse queues a NAK for the expected packet, if there is room. A NAK other than of sequence or RNR puts the queue
// pair into the error state, but queued answers to READs are still sent: the NAK must not overtake them (9.7.5.1.1).
func (q *qp) refuse(syndrome uint8) {
	p := &q.resp
	switch {
	case syndrome == nakSequence:
		q.in.Sequence++
	case syndrome&synKind == synRNR:
		q.in.NotReady++
	default:
		q.in.Errors++
	}
	p.refused = true
	a := answer{syndrome: syndrome, psn: p.psn, msn: p.msn}
	if syndrome != nakSequence && syndrome&synKind == synNAK {
		q.stop(map[uint8]control.WCStatus{nakInvalid: control.WCRemoteInvalid, nakAccess: control.WCRemoteAccess,
			nakOperate: control.WCRemoteOperation}[syndrome])
	}
	p.push(a)
	q.e.schedule(q)
}

// request processes a packet of a request, whose payload is the n bytes of q.src.
func (q *qp) request(c *dma.Copier, h *header, n uint32) {
	p := &q.resp
	d := distance(p.psn, h.psn)
	if len(p.parked.list) > 0 {
		q.parkMore(c, h, n, d)
		return
	}
	switch {
	case d > 0:
		q.in.Discarded++
		if !p.refused {
			q.refuse(nakSequence)
		}
	case d < 0:
		q.again(h)
	default:
		q.carryOut(c, h, n)
	}
}

// again answers a repeated request, as the answer may have been lost (9.7.1.1), or discards it.
func (q *qp) again(h *header) {
	p := &q.resp
	q.in.AgainPackets++
	if shapes[h.op].unsupported {
		q.in.Discarded++ // it was never carried out
		return
	}
	if h.op != opReadRequest {
		q.acknowledge()
		return
	}
	if h.dmaLen > maxRead || distance(p.psn, after(h.psn, q.packets(h.dmaLen))) > 0 || p.nAgain >= int(q.path.ReadDepth) ||
		h.dmaLen > 0 && q.e.check(h.key, q.pd, h.va, uint64(h.dmaLen), control.AccessRemoteRead) == nil {
		q.in.Discarded++
		return
	}
	p.push(answer{read: true, again: true, psn: h.psn, msn: p.msn, key: h.key, va: h.va, left: h.dmaLen})
	q.e.schedule(q)
}

// maxRead bounds the bytes of a peer's request (9.7.4.1.6): at the smallest MTU the packets of so many bytes take
// half of all packet numbers.
const maxRead = 2 * MaxLength

func (q *qp) carryOut(c *dma.Copier, h *header, n uint32) {
	p, s := &q.resp, &shapes[h.op]
	p.refused = false
	if q.wrong(h, s, n) {
		q.refuse(nakInvalid)
		return
	}
	if h.op == opReadRequest {
		q.carryOutRead(h)
		return
	}
	if s.first && s.write {
		if h.dmaLen > 0 && q.e.check(h.key, q.pd, h.va, uint64(h.dmaLen), control.AccessRemoteWrite) == nil {
			q.refuse(nakAccess)
			return
		}
	}
	if (s.first && s.send || s.last && s.write && s.imm) && q.nRecv == 0 {
		q.refuse(synRNR | q.path.RNRTimer)
		return
	}
	var got outcome
	switch {
	case s.write && s.first:
		to := [1]control.SGE{{VA: h.va, Len: n, Key: h.key}}
		got = q.store(c, to[:], 0, n, h.dmaLen, control.AccessRemoteWrite, &q.in)
	case s.write:
		to := [1]control.SGE{{VA: p.va, Len: n, Key: p.key}}
		got = q.store(c, to[:], 0, n, p.left, control.AccessRemoteWrite, &q.in)
	default:
		r := &q.recvs[q.firstRecv]
		off := uint32(0)
		if !s.first {
			off = p.off
		}
		if uint64(off)+uint64(n) > r.size {
			q.takeRecv(control.WC{Status: control.WCLocalLength})
			q.refuse(nakInvalid)
			return
		}
		got = q.store(c, r.sges[:r.n], off, n, n, control.AccessLocalWrite, &q.in)
	}
	switch got {
	case found:
	case dropped:
		q.in.Discarded++
		return
	case awaited:
		q.park(c, h, n)
		return
	case refused, faulted, notToGet:
		switch {
		case s.send: // the error is on this end (9.9.3.1, class A)
			q.takeRecv(control.WC{Status: got.status()})
			q.refuse(nakOperate)
		case got == refused:
			q.refuse(nakAccess)
		default:
			q.refuse(nakOperate)
		}
		return
	}
	q.carriedOut(h, s, n)
}

func (q *qp) carriedOut(h *header, s *shape, n uint32) {
	p := &q.resp
	switch {
	case s.write && s.first:
		p.inWrite, p.va, p.key, p.left, p.off = true, h.va, h.key, h.dmaLen, 0
	case s.first:
		p.inSend, p.off = true, 0
	}
	p.va, p.left, p.off = p.va+uint64(n), p.left-n, p.off+n
	p.psn = after(p.psn, 1)
	q.in.Requests++
	if s.last {
		p.msn = after(p.msn, 1)
		q.in.Messages++
		w := control.WC{Len: p.off, HasImm: s.imm, Imm: h.imm}
		if s.send || s.imm {
			q.takeRecv(w)
		}
		p.inWrite, p.inSend = false, false
	}
	if h.ackReq {
		q.acknowledge()
	}
}

// wrong reports whether a packet of a request is unsupported, or does not fit the message in progress, the path MTU
// or the message's length (9.9.3.1).
func (q *qp) wrong(h *header, s *shape, n uint32) bool {
	p := &q.resp
	inside := p.inWrite || p.inSend
	switch {
	case s.unsupported, s.first && inside, !s.first && s.write && !p.inWrite, !s.first && s.send && !p.inSend:
		return true
	case s.whole && n != q.mtu, n > q.mtu, s.empty && n != 0:
		return true
	case s.write && s.first && s.last:
		return n != h.dmaLen
	case s.write && s.first:
		return h.dmaLen <= q.mtu || h.dmaLen > maxRead
	case s.write && s.last:
		return n != p.left || n == 0
	case s.write:
		return p.left <= q.mtu
	case s.send && !s.first && p.off > maxRead-n: // the message is longer than maxRead (9.7.4.1.6)
		return true
	case s.send && s.last && !s.first:
		return n == 0
	case h.op == opReadRequest:
		return h.dmaLen > maxRead
	}
	return false
}

func (q *qp) carryOutRead(h *header) {
	p := &q.resp
	switch {
	case h.dmaLen > 0 && q.e.check(h.key, q.pd, h.va, uint64(h.dmaLen), control.AccessRemoteRead) == nil:
		q.refuse(nakAccess)
		return
	case p.nReads >= int(q.path.ReadDepth) || p.n == len(p.answers):
		q.refuse(nakInvalid) // more READs in progress than agreed (9.9.3.1), or no room
		return
	}
	q.in.Requests++
	q.in.Messages++
	p.msn = after(p.msn, 1)
	p.push(answer{read: true, psn: h.psn, msn: p.msn, key: h.key, va: h.va, left: h.dmaLen})
	p.psn = after(p.psn, q.packets(h.dmaLen))
	q.e.schedule(q)
}

// emitAnswer makes the next packet of the oldest queued answer; false: it made none.
func (q *qp) emitAnswer(f frame) bool {
	p := &q.resp
	if p.n == 0 {
		return false
	}
	a := &p.answers[p.first]
	if a.waiting {
		return false
	}
	if !a.read {
		h := header{op: opAck, qpn: q.path.RemoteQPN, psn: a.psn, syndrome: a.syndrome, msn: a.msn}
		q.build(f, &h, 0)
		q.in.Responses++
		p.pop()
		return true
	}
	n := min(q.mtu, a.left)
	f.need = control.AccessRemoteRead
	f.pieces = append(f.pieces[:0], control.SGE{VA: a.va, Len: n, Key: a.key})
	switch got := q.load(f, a.left, &q.in); got {
	case found:
	case awaited:
		a.waiting = true
		return false
	default:
		syndrome := uint8(nakOperate)
		if got == refused {
			syndrome = nakAccess
		}
		psn := a.psn
		for p.n > 0 { // the answers after this one are to later requests
			p.pop()
		}
		q.refuse(syndrome)
		p.last().psn = psn
		return q.emitAnswer(f)
	}
	h := header{qpn: q.path.RemoteQPN, psn: a.psn, syndrome: synAck, msn: a.msn}
	switch last := n == a.left; {
	case !a.begun && last:
		h.op = opReadRespOnly
	case !a.begun:
		h.op = opReadRespFirst
	case last:
		h.op = opReadRespLast
	default:
		h.op = opReadRespMid
	}
	q.build(f, &h, n)
	if a.again {
		q.in.AgainBytes += uint64(n)
	}
	q.in.Responses++
	a.begun, a.psn, a.va, a.left = true, after(a.psn, 1), a.va+uint64(n), a.left-n
	if a.left == 0 {
		p.pop()
	}
	return true
}

// store copies the n bytes of q.src to [off, off+n) of this end's memory in sges, and adds them to count. If a page on
// demand is missing, pages for ahead bytes may be requested.
func (q *qp) store(c *dma.Copier, sges []control.SGE, off, n, ahead uint32, need uint8,
	count *control.RDMACounts) outcome {
	if n == 0 {
		return found
	}
	var mem [control.MaxSGEs]control.SGE
	pieces, ok := cut(mem[:0], sges, off, n)
	if !ok {
		return refused
	}
	q.dst = dma.Reuse(q.dst)
	paged := false
	for _, g := range pieces {
		var got outcome
		q.dst, got = q.resolve(q.dst, g.Key, g.VA, uint64(g.Len), uint64(max(g.Len, ahead)), need, dma.Write)
		if got != found {
			return got
		}
		paged = paged || q.e.isPaged(g.Key)
	}
	bounced := !q.e.c.Direct(q.dst)
	q.landed.gpu, q.landed.bounced = q.dst[0].GPU()+1, bounced
	if err := q.move(c, bounced, n); err != nil {
		var fault *dma.FaultError
		if errors.As(err, &fault) && !q.e.c.Space.Has(fault.File) {
			return dropped
		}
		return faulted
	}
	q.tallyTo(count, q.dst, n, bounced, paged)
	return found
}

func (q *qp) tallyTo(count *control.RDMACounts, segs []dma.Segment, n uint32, bounced, paged bool) {
	if !bounced {
		tally(count, segs, paged)
		return
	}
	var to control.RDMACounts
	tally(&to, segs, paged)
	count.HostBytes += uint64(n)
	count.BouncedBytes += to.DeviceBytes + to.GPUFileBytes
}

func (q *qp) move(c *dma.Copier, bounced bool, n uint32) error {
	src := q.src
	if bounced {
		if q.bounce == nil {
			q.bounce = dma.NewBuffer(make([]byte, 4096), dma.Host)
		}
		seg := [1]dma.Segment{q.bounce.Segment(0, n)}
		if err := copyAll(c, seg[:], src, n); err != nil {
			return err
		}
		src = seg[:]
	}
	return copyAll(c, q.dst, src, n)
}

var errShort = errors.New("fewer bytes than there should be")

func copyAll(c *dma.Copier, dst, src []dma.Segment, n uint32) error {
	if k, err := c.Copy(dst, src); err != nil {
		return err
	} else if k != uint64(n) {
		return errShort
	}
	return nil
}

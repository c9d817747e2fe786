package rdma

import (
	"fmt"
	"syscall"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/control"
)

// requester is the half of a queue pair that sends requests (9.7). Packets from una up to next have no answer. A
// READ takes as many packet numbers as its answer has packets. After a loss next goes back to una, and then up to top
// again.
type requester struct {
	wqes        []wqe // ring
	head, n     int
	cur         int    // index from head of the posted work request whose packet is next; n: none
	pkt         uint32 // index of the next packet in that work request
	next        uint32 // number of the next packet
	una         uint32 // number of the oldest packet without an answer
	top         uint32 // number after the newest packet ever sent, or requested by a READ
	reads       int    // pieces of READs (emitRead) requested since next last went back, without a complete answer
	retries     uint8  // retries left after timeouts
	rnrs        uint8  // retries left after RNR NAKs; 7: no limit
	recovering  bool   // goBack was called, and una has not moved since
	waiting     bool   // requests wait until resume: a page of this end's memory is missing
	again       bool   // a packet of a READ's answer was dropped, as a page was missing; resume calls goBack
	rnrUntil    int64  // when to send again after an RNR NAK; 0: no delay
	answerUntil int64  // when the wait for the oldest missing answer times out; 0: not set
}

type wqe struct {
	id     uint64
	op     control.WROp
	flags  uint8
	imm    uint32
	key    uint32
	remote uint64
	sges   [control.MaxSGEs]control.SGE
	nSGE   int
	size   uint32
	begun  bool   // its packets have numbers
	first  uint32 // number of the first packet
	pkts   uint32
	got    uint32 // packets of a READ's answer that have been stored
}

func (r *requester) posted(i int) *wqe { return &r.wqes[(r.head+i)%len(r.wqes)] }

// PostSend implements control.RDMA.
func (e *Engine) PostSend(p control.Post) error {
	return e.with(p.QPN, func(q *qp) error {
		if q.state == control.QPInit {
			return fmt.Errorf("queue pair %d: it is not connected: %w", q.n, syscall.ENOTCONN)
		}
		for i := range p.WRs {
			if err := q.checkWR(&p.WRs[i]); err != nil {
				return fmt.Errorf("queue pair %d: work request %d of %d: %w", q.n, i+1, len(p.WRs), err)
			}
		}
		r := &q.req
		if len(p.WRs) > len(r.wqes)-r.n {
			return fmt.Errorf("queue pair %d: %d sends, %d posted of %d: %w", q.n, len(p.WRs), r.n, len(r.wqes), syscall.ENOSPC)
		}
		if !q.send.reserve(len(p.WRs)) {
			return fmt.Errorf("queue pair %d: completion queue %d has no place for %d more: poll it: %w", q.n, q.send.id,
				len(p.WRs), syscall.ENOSPC)
		}
		for i := range p.WRs {
			w := &p.WRs[i]
			s := r.posted(r.n)
			*s = wqe{id: w.ID, op: w.Op, flags: w.Flags, imm: w.Imm, key: w.Key, remote: w.Remote}
			s.nSGE = copy(s.sges[:], w.SGEs)
			for _, g := range w.SGEs {
				s.size += g.Len
			}
			s.pkts = q.packets(s.size)
			r.n++
		}
		if q.state == control.QPError {
			q.flushSends()
			return nil
		}
		q.e.schedule(q)
		return nil
	})
}

func (q *qp) checkWR(w *control.WR) error {
	size := uint64(0)
	for _, g := range w.SGEs {
		size += uint64(g.Len)
	}
	const flags = control.WRSignaled | control.WRSolicited | control.WRFence
	imm := w.Op == control.WRWriteImm || w.Op == control.WRSendImm
	send := w.Op == control.WRSend || w.Op == control.WRSendImm
	switch {
	case w.Op < control.WRWrite || w.Op > control.WRSendImm:
		return fmt.Errorf("operation %d: not 1 to %d: %w", w.Op, control.WRSendImm, syscall.EINVAL)
	case w.Flags&^flags != 0:
		return fmt.Errorf("flags %#x: only %#x are known: %w", w.Flags, flags, syscall.EINVAL)
	case size > MaxLength:
		return fmt.Errorf("%d bytes, at most %d: %w", size, MaxLength, syscall.EINVAL)
	case w.Imm != 0 && !imm:
		return fmt.Errorf("immediate data, and its operation (%d) has none: %w", w.Op, syscall.EINVAL)
	case send && (w.Key != 0 || w.Remote != 0):
		return fmt.Errorf("a SEND has no remote address: %w", syscall.EINVAL)
	case w.Op == control.WRRead && q.path.Reads == 0:
		return fmt.Errorf("a READ, and the connection allows none (0 at one time): %w", syscall.EINVAL)
	}
	return nil
}

func (q *qp) packets(size uint32) uint32 { return max(1, (size+q.mtu-1)/q.mtu) }

// emitRequest makes the next packet of a request; false: it made none.
func (q *qp) emitRequest(f frame) bool {
	r := &q.req
	t := q.e.now()
	if r.rnrUntil > t {
		return false
	}
	r.rnrUntil = 0
	if r.cur == r.n || r.waiting || distance(r.una, r.next) >= Window {
		return false
	}
	w := r.posted(r.cur)
	if r.pkt == 0 && w.flags&control.WRFence != 0 && r.una != r.next {
		return false // an earlier packet has no answer
	}
	if !w.begun {
		w.begun, w.first = true, r.next
	}
	var sent uint32
	if w.op == control.WRRead {
		sent = q.emitRead(f, w)
	} else {
		sent = q.emitData(f, w)
	}
	if sent == 0 {
		return false
	}
	if distance(r.top, r.next) < 0 {
		q.out.AgainPackets++
	}
	r.pkt += sent
	r.next = after(r.next, sent)
	if distance(r.top, r.next) > 0 {
		r.top = r.next
	}
	if r.pkt >= w.pkts {
		r.cur, r.pkt = r.cur+1, 0
	}
	q.out.Requests++
	if r.answerUntil == 0 {
		r.answerUntil = t + q.timeout()
		q.setDue()
	}
	return true
}

// timeout returns how many nanoseconds the queue pair waits for an answer (9.7.6.1.3).
func (q *qp) timeout() int64 { return int64(4096) << q.path.Timeout }

// setDue sets when tick must schedule the queue pair.
func (q *qp) setDue() {
	r := &q.req
	due := r.answerUntil
	if r.rnrUntil != 0 && (due == 0 || r.rnrUntil < due) {
		due = r.rnrUntil
	}
	q.due.Store(due)
	if due != 0 {
		q.e.wakeAt(due)
	}
}

// emitRead requests a piece of a READ, and returns how many packets the piece's answer has; 0: it requested none.
func (q *qp) emitRead(f frame, w *wqe) uint32 {
	r := &q.req
	if r.reads >= int(q.path.Reads) {
		return 0
	}
	n := min(w.pkts, (r.pkt/readPiece+1)*readPiece) - r.pkt // a piece ends at the same packet at each try
	off := r.pkt * q.mtu
	size := min(n*q.mtu, w.size-off)
	if got := q.probe(w, off, size); got != found {
		q.stuck(got)
		return 0
	}
	h := header{op: opReadRequest, qpn: q.path.RemoteQPN, psn: r.next, va: w.remote + uint64(off), key: w.key,
		dmaLen: size}
	q.build(f, &h, 0)
	r.reads++
	return n
}

// probe checks that a READ's local memory [off, off+size) is there for the answer. It may request missing pages.
func (q *qp) probe(w *wqe, off, size uint32) outcome {
	for i := range w.nSGE {
		g := &w.sges[i]
		if off >= g.Len {
			off -= g.Len
			continue
		}
		n := min(size, g.Len-off)
		if n == 0 {
			break
		}
		va := g.VA + uint64(off)
		r := q.e.check(g.Key, q.pd, va, uint64(n), control.AccessLocalWrite)
		if r == nil || va < g.VA {
			return refused
		}
		if r.pages != nil {
			off0 := va - r.VA
			if got := r.pages.there(q, off0, uint64(n), min(uint64(g.Len-off), r.Len-off0), dma.Write); got != found {
				return got
			}
		}
		off, size = 0, size-n
	}
	return found
}

// emitData makes a packet of a WRITE or a SEND. It returns 1, or 0 if it made none.
func (q *qp) emitData(f frame, w *wqe) uint32 {
	r := &q.req
	off := r.pkt * q.mtu
	n := min(q.mtu, w.size-off)
	last := r.pkt+1 == w.pkts
	h := header{qpn: q.path.RemoteQPN, psn: r.next, solicited: last && w.flags&control.WRSolicited != 0,
		ackReq: last || (r.pkt+1)%(Window/4) == 0 || distance(r.una, r.next) == Window-1}
	imm := w.op == control.WRWriteImm || w.op == control.WRSendImm
	write := w.op == control.WRWrite || w.op == control.WRWriteImm
	switch {
	case r.pkt == 0 && last:
		h.op = opSendOnly
	case r.pkt == 0:
		h.op = opSendFirst
	case last:
		h.op = opSendLast
	default:
		h.op = opSendMiddle
	}
	if write {
		h.op += opWriteFirst - opSendFirst
	}
	if imm && last {
		h.op++ // the same operation with immediate data
		h.imm = w.imm
	}
	if shapes[h.op].reth {
		h.va, h.key, h.dmaLen = w.remote, w.key, w.size
	}
	var ok bool
	f.need = 0
	if f.pieces, ok = cut(f.pieces[:0], w.sges[:w.nSGE], off, n); !ok {
		q.stuck(refused)
		return 0
	}
	again := distance(r.top, r.next) < 0
	if got := q.load(f, w.size-off, &q.out); got != found {
		q.stuck(got)
		return 0
	}
	if again {
		q.out.AgainBytes += uint64(n)
	}
	q.build(f, &h, n)
	return 1
}

// stuck handles a work request whose memory on this end is missing: the work request waits for a page, or, once it is
// the oldest, fails with the queue pair.
func (q *qp) stuck(o outcome) {
	r := &q.req
	if o == awaited {
		r.waiting = true
		return
	}
	if r.cur > 0 {
		return // earlier work requests may still get answers
	}
	q.endHead(o.status())
}

func (o outcome) status() control.WCStatus {
	if o == notToGet {
		return control.WCPagesUnavailable
	}
	return control.WCLocalProtection
}

func (q *qp) endHead(s control.WCStatus) {
	if q.req.n > 0 {
		q.finish(control.WC{Status: s})
	}
	q.fail(s)
}

func (q *qp) finish(c control.WC) {
	r := &q.req
	w := r.posted(0)
	if c.Status == control.WCSuccess && w.flags&control.WRSignaled == 0 {
		q.send.release(1)
	} else {
		c.ID, c.QPN, c.Op = w.id, q.n, w.op
		if w.op == control.WRRead && c.Status == control.WCSuccess {
			c.Len = w.size
		}
		q.complete(q.send, c)
	}
	r.head, r.n = (r.head+1)%len(r.wqes), r.n-1
	r.cur--
}

func (q *qp) flushSends() {
	for q.req.n > 0 {
		q.finish(control.WC{Status: control.WCFlushed})
	}
	q.req.cur, q.req.pkt = 0, 0
}

// seek sets next to packet psn, and cur and pkt to match.
func (q *qp) seek(psn uint32) {
	r := &q.req
	r.next = psn
	for i := range r.n {
		w := r.posted(i)
		if !w.begun {
			r.cur, r.pkt = i, 0
			return
		}
		if d := distance(w.first, psn); d >= 0 && d < int32(w.pkts) {
			r.cur, r.pkt = i, uint32(d)
			return
		}
	}
	r.cur, r.pkt = r.n, 0
}

func (q *qp) goBack() {
	q.seek(q.req.una)
	q.req.reads, q.req.recovering = 0, true
	q.e.schedule(q)
}

// advance processes an acknowledgment of all packets up to psn, psn included. It stops at a READ whose answer is
// incomplete. whole is false if it stopped there and psn is not before the READ's first missing packet.
func (q *qp) advance(psn uint32) (whole bool) {
	r := &q.req
	was := r.una
	whole = true
	for r.n > 0 {
		w := r.posted(0)
		if !w.begun || distance(w.first, psn) < 0 {
			break
		}
		end := after(w.first, w.pkts)
		if w.op == control.WRRead && w.got < w.pkts {
			r.una = after(w.first, w.got)
			whole = distance(r.una, psn) < 0
			break
		}
		if distance(end, psn) < -1 {
			r.una = after(psn, 1)
			break
		}
		r.una = end
		q.out.Messages++
		q.finish(control.WC{})
	}
	if r.una != was {
		q.progress()
	}
	return whole
}

// progress resets retries and timers after una has moved.
func (q *qp) progress() {
	r := &q.req
	r.recovering, r.retries, r.rnrs = false, q.path.Retries, q.path.RNR
	if distance(r.next, r.una) > 0 || r.cur < 0 { // the answer was to packets that were to be sent again
		q.seek(r.una)
	}
	r.answerUntil, r.rnrUntil = 0, 0
	if r.una != r.top {
		r.answerUntil = q.e.now() + q.timeout()
	}
	q.setDue()
	q.e.schedule(q)
}

func (r *requester) sentBefore(psn uint32) bool {
	return distance(r.una, psn) >= 0 && distance(psn, r.top) > 0
}

// answered processes an ACK or a NAK (9.7.5).
func (q *qp) answered(h *header) {
	r := &q.req
	q.out.Responses++
	if h.syndrome&synKind == 0 { // an ACK, whose credits are ignored
		if r.sentBefore(h.psn) && !q.advance(h.psn) && !r.recovering {
			q.goBack() // a packet of a READ's answer is lost
		}
		return
	}
	// A NAK has the number of the packet that the peer wants or refuses, and acknowledges earlier ones.
	if !r.sentBefore(h.psn) {
		q.out.Discarded++
		return
	}
	if h.psn != r.una {
		q.advance(after(h.psn, psnMask))
	}
	if h.psn != r.una {
		if !r.recovering {
			q.goBack() // a packet of an earlier READ's answer is lost
		}
		return
	}
	switch {
	case h.syndrome&synKind == synRNR:
		q.out.NotReady++
		if r.rnrs == 0 {
			q.endHead(control.WCRNRExceeded)
			return
		}
		if q.path.RNR != 7 {
			r.rnrs--
		}
		q.seek(r.una)
		r.reads, r.answerUntil = 0, 0
		r.rnrUntil = q.e.now() + int64(rnrTimes[h.syndrome&0x1f])
		q.setDue()
	case h.syndrome == nakSequence:
		q.out.Sequence++
		if !r.recovering {
			q.goBack()
		}
	case h.syndrome == nakInvalid:
		q.refusedBy(control.WCRemoteInvalid)
	case h.syndrome == nakAccess:
		q.refusedBy(control.WCRemoteAccess)
	case h.syndrome == nakOperate:
		q.refusedBy(control.WCRemoteOperation)
	default:
		q.out.Discarded++
	}
}

func (q *qp) refusedBy(s control.WCStatus) {
	q.out.Errors++
	q.endHead(s)
}

func (q *qp) overdue(t int64) {
	r := &q.req
	if r.rnrUntil != 0 && t >= r.rnrUntil {
		r.rnrUntil = 0
		q.setDue()
	}
	if r.answerUntil == 0 || t < r.answerUntil {
		return
	}
	q.out.Timeouts++
	if r.retries == 0 {
		q.endHead(control.WCRetriesExceeded)
		return
	}
	r.retries--
	r.answerUntil = t + q.timeout()
	q.goBack()
	q.setDue()
}

// readAnswer processes a packet of a READ's answer (9.7.5.1.4), whose payload is the n bytes of q.src.
func (q *qp) readAnswer(c *dma.Copier, h *header, n uint32) {
	r := &q.req
	if shapes[h.op].aeth && h.syndrome&synKind != 0 || !r.sentBefore(h.psn) {
		q.out.Discarded++
		return
	}
	q.advance(after(h.psn, psnMask)) // the answer acknowledges earlier packets
	if r.n == 0 || h.psn != r.una {
		if !r.recovering && distance(r.una, h.psn) > 0 {
			q.goBack()
		}
		q.out.Discarded++
		return
	}
	w := r.posted(0)
	off := w.got * q.mtu
	if w.op != control.WRRead || !w.begun || n != min(q.mtu, w.size-off) {
		q.out.Discarded++
		return
	}
	switch got := q.store(c, w.sges[:w.nSGE], off, n, n, control.AccessLocalWrite, &q.out); got {
	case found:
	case awaited: // resume requests the READ again when the wait for the page ends
		q.out.Discarded++
		r.waiting, r.again = true, true
		return
	case dropped:
		q.out.Discarded++
		return
	case notToGet:
		q.endHead(control.WCPagesUnavailable)
		return
	default:
		q.endHead(control.WCLocalProtection)
		return
	}
	q.out.Responses++
	w.got++
	r.una = after(r.una, 1)
	if (w.got%readPiece == 0 || w.got == w.pkts) && r.reads > 0 {
		r.reads--
	}
	if w.got == w.pkts {
		q.out.Messages++
		q.finish(control.WC{})
	}
	q.progress()
}

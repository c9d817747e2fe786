package nic

import (
	"math"
	"sync/atomic"
	"time"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/lab/shape"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/nic/coalesce"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/splitter"
)

const (
	// maxHeld bounds the open merges on a receive queue of a port with Config.Hold.
	maxHeld = 64
	// chunkBytes and maxChunks bound a queue's memory for held payload. When a merge needs more, the oldest merge
	// ends, or, if the oldest must stay open, the merge itself.
	chunkBytes = 8 << 10
	maxChunks  = 2 * maxHeld
	heldChunks = MaxFrame/chunkBytes + 2 // upper bound of the chunks of a merge
	// MaxHold is the longest Config.Hold.
	MaxHold = time.Second
	// holdRetry is the time to the next try, in nanoseconds, if held frames found no buffers and Arm returned
	// false.
	holdRetry = int64(time.Millisecond)
)

// store holds, in this process's memory, the frames of a queue's open merges that came in earlier batches. Its user
// holds the queue's lock.
type store struct {
	free   []*held
	chunks []dma.Segment
	made   int
	worker wire.Worker // for puts outside a sender's Deliver
	cutter splitter.Segmenter
	pkt    wire.Packet // result of frame
	hdr    [splitter.MaxHeader]byte
	merged [splitter.MaxHeader]byte
	meta   splitter.Meta
}

// held has the frames of a merge that came in earlier batches. All have payloads of the
// same length.
type held struct {
	kept     coalesce.Merge // the merge without frames of this batch
	hdr      [splitter.MaxHeader]byte
	meta     splitter.Meta
	src, dst wire.MAC
	from     uint32
	chunks   []dma.Segment
	frames   uint32
	done     uint32 // frames put or dropped; if not 0, no frame may join the merge
	bytes    uint32
	whole    [coalesce.MaxFrames / 64]uint64 // bit j: frame j came without a partial checksum
	due      int64                           // when the merge ends, by holder.now
}

func newStore() *store {
	s := &store{worker: wire.Worker{Copier: dma.NewCopier()}}
	s.pkt.Payload = make([]dma.Segment, 0, heldChunks)
	return s
}

// keep copies the payload of this batch's merged frames to the store: the senders own their frames again when Deliver
// returns. It ends merges if the store has no room, and a merge whose payload it cannot read.
func (m *merger) keep(d *delivery, rq *rxQueue, batch []*wire.Packet) {
	now := int64(0)
	for k := 0; k < m.n; {
		g := &m.open[k]
		if g.here == 0 {
			k++
			continue
		}
		if m.store == nil {
			m.store = newStore()
		}
		if now == 0 {
			now = d.port.hold.now()
		}
		if !m.store.room(g) {
			if k > 0 && m.end(d, rq, batch, 0) {
				k--
			} else {
				m.end(d, rq, batch, k)
			}
			continue
		}
		if !m.store.fill(d.w.Copier, g, batch, m.next, now+d.port.hold.time) {
			m.end(d, rq, batch, k) // end will meet the bad memory
			continue
		}
		for i, n := g.first, g.here; n > 0; i, n = m.next[i], n-1 {
			PutTaken.verdict(&batch[i].Verdict, rq.wait)
		}
		g.here = 0
		k++
	}
	rq.holding.Store(int32(m.n))
	if now != 0 && m.n > 0 {
		d.port.hold.wakeBy(m.open[0].held.due)
	}
}

func (s *store) room(g *merge) bool {
	n := int(g.Payload()+chunkBytes-1) / chunkBytes
	if g.held != nil {
		n -= len(g.held.chunks)
	}
	return n <= len(s.chunks)+maxChunks-s.made
}

// fill copies the payload of a merge's frames of this batch to chunks; the store must have enough (room). It returns
// false, and adds no frame to the held ones, if a sender's memory is gone.
func (s *store) fill(c *dma.Copier, g *merge, batch []*wire.Packet, next []int32, due int64) bool {
	h, fresh := g.held, g.held == nil
	if fresh {
		h = s.slot()
	}
	for len(h.chunks)*chunkBytes < int(g.Payload()) {
		h.chunks = append(h.chunks, s.chunk())
	}
	pos := h.bytes
	for i, n := g.first, g.here; n > 0; i, n = next[i], n-1 {
		pkt := batch[i]
		s.pkt.Payload = dma.Cut(dma.Reuse(s.pkt.Payload), h.chunks, uint64(pos), uint64(pkt.PayloadLen))
		if k, err := c.Copy(s.pkt.Payload, pkt.Payload); err != nil || k < uint64(pkt.PayloadLen) {
			if fresh {
				s.put(h)
			}
			return false
		}
		pos += pkt.PayloadLen
	}
	if fresh {
		first := batch[g.first]
		g.held, h.due, h.src, h.dst, h.from = h, due, first.Src, first.Dst, first.From
		g.Keep(h.hdr[:], &h.meta)
	}
	for i, n := g.first, g.here; n > 0; i, n = next[i], n-1 {
		if batch[i].Meta.Csum != splitter.CsumPartial {
			h.whole[h.frames/64] |= 1 << (h.frames % 64)
		}
		h.frames++
	}
	h.bytes, h.kept, g.segments = pos, g.Merge, len(h.chunks)
	return true
}

func (s *store) slot() *held {
	n := len(s.free)
	if n == 0 {
		return &held{chunks: make([]dma.Segment, 0, heldChunks)}
	}
	h := s.free[n-1]
	s.free = s.free[:n-1]
	return h
}

func (s *store) chunk() (c dma.Segment) {
	if n := len(s.chunks); n > 0 {
		c, s.chunks = s.chunks[n-1], s.chunks[:n-1]
		return c
	}
	s.made++
	return dma.NewBuffer(make([]byte, chunkBytes), dma.Wire).Segment(0, chunkBytes)
}

func (s *store) put(h *held) {
	s.chunks = append(s.chunks, h.chunks...)
	h.kept, h.chunks, h.whole = coalesce.Merge{}, h.chunks[:0], [coalesce.MaxFrames / 64]uint64{}
	h.frames, h.done, h.bytes = 0, 0, 0
	s.free = append(s.free, h)
}

func (s *store) cut(h *held) {
	if h.frames > 1 {
		_ = s.cutter.Init(h.kept.Header(s.merged[:], &s.meta), &s.meta, h.bytes) // never fails for our own GSO packet
	}
}

// frame rebuilds held frame j as it came from the wire. The caller has called cut for h. The result is valid until the
// next call of frame or fill.
func (s *store) frame(c *dma.Copier, h *held, j uint32) *wire.Packet {
	hdr, meta := h.kept.First()
	p, n := &s.pkt, h.kept.MSS()
	p.Src, p.Dst, p.From, p.PayloadLen = h.src, h.dst, h.from, n
	p.Payload = dma.Cut(dma.Reuse(p.Payload), h.chunks, uint64(j*n), uint64(n))
	if h.frames == 1 {
		p.Header, p.Meta = hdr, *meta
		return p
	}
	p.Header = s.hdr[:len(hdr)]
	_ = s.cutter.Piece(p.Header, &p.Meta, j*n, n)
	if h.whole[j/64]&(1<<(j%64)) != 0 {
		sum, _ := c.Sum(p.Payload) // never fails for this process's memory
		p.Meta.Complete(p.Header, sum)
	}
	return p
}

// release ends a merge with held frames: it puts them and this batch's frames of the merge into the queue as one
// packet, or else one by one. It returns false if held frames must wait, for buffers or behind a packet that waits:
// they stay held, and the merge's frames of this batch become Busy.
func (m *merger) release(d *delivery, rq *rxQueue, batch []*wire.Packet, k int) bool {
	g, h := &m.open[k], m.open[k].held
	if wait := d.blocked.waitFor(&g.route); wait == nil {
		q := g.route.q
		d.port.split(d.s, m.first(g), &g.route) // by the queue's current setting
		g.route.q = q
		if h.done == 0 && g.Frames() > 1 && m.put(d, rq, batch, g) {
			m.store.put(h)
			m.remove(k)
			return true
		}
		for m.store.cut(h); h.done < h.frames; h.done++ {
			pkt := m.store.frame(d.w.Copier, h, h.done)
			d.port.split(d.s, pkt, &g.route)
			g.route.q = q
			if !rq.late(d, pkt, &g.route) {
				break
			}
		}
	}
	was := *g
	g.Merge, g.here = h.kept, 0
	gone := h.done == h.frames
	if gone {
		m.store.put(h)
		m.remove(k)
	} else if h.done > 0 {
		g.alone = true
	}
	m.apart(d, rq, batch, &was)
	return gone
}

// parts counts the held frames of a merged packet, and reports them to the tap, if there is one. It returns where the
// payload of this batch's frames begins in the packet's payload.
func (m *merger) parts(d *delivery, rq *rxQueue, h *held, place *wire.Placement) (off uint32) {
	hdr, _ := h.kept.First()
	if d.tap == nil && len(d.s.flowCounters) == 0 { // no tap and no flow counter needs the single frames
		for range h.frames {
			rq.delta.count(1, uint64(len(hdr)), &bytesByMem{})
		}
		return h.bytes
	}
	m.store.cut(h)
	for j := range h.frames {
		off = rq.part(d, m.store.frame(d.w.Copier, h, j), place, off)
	}
	return off
}

// first returns a packet with the first frame's header and the merge's length of payload, for Port.split.
func (m *merger) first(g *merge) *wire.Packet {
	hdr, meta := g.First()
	m.pkt.Header, m.pkt.Meta, m.pkt.PayloadLen = hdr, *meta, g.Payload()
	return &m.pkt
}

// late puts a held frame into the queue, or drops it and counts the drop at the link. false: the frame must wait for a
// buffer.
func (rq *rxQueue) late(d *delivery, pkt *wire.Packet, r *route) bool {
	rq.one(d, pkt, r)
	switch pkt.Verdict.Kind {
	case wire.Busy:
		return false
	case wire.Dropped:
		d.port.refuse(pkt.Verdict.Reason)
	}
	return true
}

func (m *merger) lose(d *delivery, rq *rxQueue, k int) {
	h := m.open[k].held
	for m.store.cut(h); h.done < h.frames; h.done++ {
		pkt := m.store.frame(d.w.Copier, h, h.done)
		pkt.Verdict = wire.Drop(wire.DropNoBuffer)
		rq.delta.drop(uint64(pkt.PayloadLen))
		if a := rq.account(d.s, pkt); a != nil {
			dropFlow(a, pkt, wire.DropNoBuffer)
		}
		for _, fc := range d.s.flowCounters {
			if fc.rx.flow == pkt.Meta.Headers.Flow {
				fc.rx.lose(uint64(pkt.PayloadLen))
			}
		}
		if d.tap != nil {
			d.tap.Received(d.w, pkt, wire.Nowhere)
		}
		d.port.refuse(wire.DropNoBuffer)
	}
	m.store.put(h)
	m.remove(k)
}

// refuse counts a dropped frame at the port's link, if there is one. For the frame's sender it was Taken.
func (p *Port) refuse(r wire.DropReason) {
	if link := p.link.Load(); link != nil {
		link.Refuse(r)
	}
}

// holder is a port's goroutine that ends merges when their time is up.
type holder struct {
	port *Port
	time int64        // Config.Hold, in nanoseconds
	now  func() int64 // Config.Clock, or shape.Now
	all  atomic.Bool  // in its next round the goroutine also tries to end merges that are not due
	next atomic.Int64 // when the goroutine wakes by itself, by now; MaxInt64: never
	kick chan struct{}
	stop chan struct{}
	done chan struct{}
}

func newHolder(p *Port, d time.Duration) *holder {
	h := &holder{port: p, time: int64(d), now: p.conf.Clock, kick: make(chan struct{}, 1), stop: make(chan struct{}),
		done: make(chan struct{})}
	if h.now == nil {
		h.now = shape.Now
	}
	dma.Go(h.run)
	return h
}

func (h *holder) close() {
	close(h.stop)
	<-h.done
}

// Wake implements wire.Waker: it makes the goroutine look for due merges now.
func (h *holder) Wake() {
	select {
	case h.kick <- struct{}{}:
	default:
	}
}

func (h *holder) wakeBy(due int64) {
	if due < h.next.Load() {
		h.Wake()
	}
}

func (h *holder) run() {
	defer close(h.done)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-h.kick:
		case <-h.stop:
			return
		}
		h.next.Store(math.MaxInt64) // before flushDue, so that no wakeBy is lost
		if h.all.Swap(false) {
			h.port.flushDue(math.MaxInt64)
		}
		next := h.port.flushDue(h.now())
		h.next.Store(next)
		if next == math.MaxInt64 {
			timer.Stop()
		} else {
			timer.Reset(time.Duration(max(next-h.now(), 0)))
		}
	}
}

// mayOvertake reports whether a packet with route r may belong to a flow that has an open merge on a queue other than
// r.q.
func (r *route) mayOvertake(pkt *wire.Packet) bool {
	switch pkt.Meta.Headers.Class {
	case splitter.UDP, splitter.NotIP:
		return false
	case splitter.TCP:
		return r.q != r.home
	}
	return true
}

func (p *Port) holdsBeside(q int) bool {
	for i, rq := range p.queues {
		if i != q && rq.holding.Load() > 0 {
			return true
		}
	}
	return false
}

// flushFor tries to end all merges on queues other than r.q: a packet with route r may overtake one of them. If some
// stay open, it makes packets with route r wait (blocked).
func (d *delivery) flushFor(r *route) {
	for i, rq := range d.port.queues {
		if i == r.q || rq.holding.Load() == 0 {
			continue
		}
		if rq.flushAll(d) {
			rq.q.Call()
		}
		if rq.holding.Load() > 0 && d.blocked.waitFor(r) == nil {
			d.blocked.add(r, rq.wait)
		}
	}
}

func (rq *rxQueue) flushAll(d *delivery) (call bool) {
	rq.q.Lock()
	defer rq.q.Unlock()
	if rq.merger == nil {
		return false
	}
	rq.mover.c, rq.mover.nodes = d.w.Copier, d.port.space.Nodes() > 0
	rq.merger.finish(d, rq, nil)
	rq.settle()
	return rq.q.Flush()
}

// settle updates the queue's counters (tally) and holding after puts outside fill. The caller holds the queue's lock,
// and then calls Flush.
func (rq *rxQueue) settle() {
	rq.tally()
	if rq.merger != nil {
		rq.holding.Store(int32(rq.merger.n))
	}
}

// flushDue tries to end the due merges (flush), and returns when to call it again; MaxInt64: not before Wake.
func (p *Port) flushDue(now int64) (next int64) {
	next = math.MaxInt64
	for _, rq := range p.queues {
		if rq.holding.Load() > 0 {
			next = min(next, p.flushRx(rq, now))
		}
	}
	return next
}

func (p *Port) flushHeld() {
	if p.hold == nil {
		return
	}
	for i := range p.queues {
		p.FlushRx(i)
	}
}

// flushSoon makes the holder's goroutine try to end all merges, for a caller that must not interrupt drivers.
func (p *Port) flushSoon() {
	if p.hold != nil && p.holdsBeside(-1) {
		p.hold.all.Store(true)
		p.hold.Wake()
	}
}

// FlushRx tries to end the open merges of a receive queue. Frames that find no buffers stay held until there are
// buffers, or are dropped limits.Patience after their merge was due.
func (p *Port) FlushRx(queue int) {
	if rq := p.queues[queue]; rq.holding.Load() > 0 {
		p.flushRx(rq, math.MaxInt64)
	}
}

// flushRx is flushDue for one queue. If held frames found no buffers, it arms the queue (or, while
// Port.Exhaust is in effect, the exhaustion) to wake the holder.
func (p *Port) flushRx(rq *rxQueue, now int64) (next int64) {
	tok := p.space.Enter()
	defer p.space.Leave(tok)
	stuck, call := false, false
	next, stuck, call = rq.flush(p, now)
	if call {
		rq.q.Call()
	}
	if !stuck {
		return next
	}
	wait := wire.Waitable(rq.q)
	if p.exhausted() {
		wait = &rq.exhaustion
	}
	wait.Disarm(p.hold) // an earlier flush may have armed it
	if !wait.Arm(p.hold) {
		next = min(next, p.hold.now()+holdRetry)
	}
	return next
}

// flush does the part of flushRx that needs the queue's lock. It tries to end the due merges, oldest first, up to one
// that finds no buffers (stuck). It drops the frames of a merge that was due limits.Patience ago and finds none. call:
// the caller must call Call.
func (rq *rxQueue) flush(p *Port, now int64) (next int64, stuck, call bool) {
	rq.q.Lock()
	defer rq.q.Unlock()
	m := rq.merger
	if m == nil || m.n == 0 {
		return math.MaxInt64, false, false
	}
	var d delivery
	d.w, d.s, d.port, d.tap, d.gate.shape = &m.store.worker, p.steering.Load(), p, p.tap(), p.conf.Shape
	rq.mover.c, rq.mover.nodes = d.w.Copier, p.space.Nodes() > 0
	next = math.MaxInt64
	for m.n > 0 {
		h := m.open[0].held
		if h.due > now {
			next = h.due
			break
		}
		if !p.exhausted() && m.end(&d, rq, nil, 0) {
			continue
		}
		lost := h.due + int64(limits.Patience.Here())
		if lost > p.hold.now() {
			next, stuck = lost, true
			break
		}
		m.lose(&d, rq, 0)
		d.blocked = blockedQueues{} // the next merge may find buffers
	}
	rq.settle()
	return next, stuck, rq.q.Flush()
}

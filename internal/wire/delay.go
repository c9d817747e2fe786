package wire

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/lab/shape"
	"vnic.dev/vnic/splitter"
)

const (
	never    = math.MaxUint64
	maxTries = 8 // of a segment whose port is busy, one each HoldMax
	// Buffers have room for a segment at least, and those of more than largeFrom for any super-packet.
	minBuf    = 2 << 10
	largeFrom = 16 << 10
	largeBuf  = 64 << 10
	// Of buffers that are free a line keeps as much for the next packets. Others go, so a burst leaves nothing behind.
	keepBytes = 8 << 20
	// Of packets that are under way on a link with a delay; beyond them their sender waits.
	maxQueued      = 1 << 14
	maxQueuedBytes = 64 << 20
)

// line is a delay line: it holds segments back until enough later ones have overtaken them, or for long enough; and
// all packets of a link with a delay, or a queue, in their order until they are through. Payload is copied to buffers
// of the wire's own, so the sender's are free.
type line struct {
	link     *Link
	lv       int
	queued   atomic.Int64 // packets of queue
	maxCount int
	maxBytes int
	wait     time.Duration
	due      atomic.Uint64 // the lowest due of all that are held; never if none
	kick     chan struct{} // capacity 1: something is held
	stop     chan struct{}
	done     chan struct{} // closed when the goroutine has ended
	begin    sync.Once     // starts it

	mu     sync.Mutex // never held while copying or delivering
	held   []*heldSegment
	small  pool
	large  pool // of buffers above largeFrom: a short packet takes none that a long one will need
	count  int  // held, or being filled or sent
	bytes  int
	closed bool

	queue       deque
	queueBytes  int       // of buffers, those that are being filled or sent included
	queueCount  int       // likewise
	departed    time.Time // when the last one has left the queue of a link with a rate
	jitterDraws uint64
}

// pool is entries that are free, with their buffers.
type pool struct {
	list  []*heldSegment
	bytes int // of their buffers
}

// take gives the entry that came last, if its buffer is no longer than most; nil: there is none.
func (f *pool) take(most int) *heldSegment {
	k := len(f.list) - 1
	if k < 0 || len(f.list[k].buf) > most {
		return nil
	}
	h := f.list[k]
	f.list[k], f.list = nil, f.list[:k]
	f.bytes -= len(h.buf)
	return h
}

func (f *pool) put(h *heldSegment) {
	f.list = append(f.list, h)
	f.bytes += len(h.buf)
}

// deque is what goes through in order.
type deque struct {
	list []*heldSegment
	head int
}

func (d *deque) push(h *heldSegment) {
	if d.head > len(d.list)/2 {
		n := copy(d.list, d.list[d.head:])
		clear(d.list[n:])
		d.list, d.head = d.list[:n], 0
	}
	d.list = append(d.list, h)
}

func (d *deque) first() *heldSegment {
	if d.head == len(d.list) {
		return nil
	}
	return d.list[d.head]
}

func (d *deque) last() *heldSegment {
	if d.head == len(d.list) {
		return nil
	}
	return d.list[len(d.list)-1]
}

func (d *deque) pop() { d.list[d.head], d.head = nil, d.head+1 }

// heldSegment is a segment in a delay line.
type heldSegment struct {
	Packet
	hdr    [splitter.MaxHeader]byte
	buf    []byte
	region *dma.Region // buf
	seg    [1]dma.Segment
	run    [1]*Packet
	due    uint64 // goes before this segment
	late   time.Time
	tries  int

	inOrder bool
}

func newLine(link *Link, lv int, o *Impairment) *line {
	l := &line{
		link: link, lv: lv, maxCount: cmp.Or(o.MaxPackets, defaultMaxPackets), maxBytes: cmp.Or(o.MaxBytes, defaultMaxBytes),
		wait: cmp.Or(o.HoldMax, defaultHold),
		kick: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
	}
	l.due.Store(never)
	return l
}

// start starts the goroutine, the first time.
func (l *line) start() { l.begin.Do(func() { dma.Go(l.run) }) }

// close ends the goroutine and drops what is held.
func (l *line) close() {
	close(l.stop)
	l.begin.Do(func() { close(l.done) }) // nothing was ever held back
	<-l.done
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for _, h := range l.held {
		l.link.count.dropped(DropDelay)
		l.bytes -= len(h.buf)
	}
	l.count -= len(l.held)
	l.held = nil
	l.due.Store(never)
	for ; l.queue.first() != nil; l.queue.pop() {
		l.link.count.dropped(DropDelay)
		l.queued.Add(-1)
	}
}

// hold takes a copy of a segment, to be let go before segment due passes. It is false if there is no room, and then the
// segment goes on at once, or if it could not be copied: then r says why.
func (l *line) hold(w *Worker, p *Packet, due uint64, r *DropReason) bool {
	h := l.reserve(int(p.PayloadLen), false)
	if h == nil {
		l.link.count.delayFull.Add(1)
		return false
	}
	if *r = h.fill(w, p); *r != DropNone {
		l.recycle(h)
		return false
	}
	h.due, h.late, h.tries = due, time.Now().Add(l.wait), 0
	l.link.count.held.Add(1)
	l.put(h)
	return true
}

// fill makes the entry a copy of a packet.
func (h *heldSegment) fill(w *Worker, p *Packet) DropReason {
	if len(p.Header) > len(h.hdr) {
		return DropBadFrame
	}
	h.Header = h.hdr[:copy(h.hdr[:], p.Header)]
	h.Payload, h.PayloadLen = nil, p.PayloadLen
	if p.PayloadLen > 0 {
		h.seg[0] = dma.Segment{Region: h.region, Len: p.PayloadLen}
		h.Payload = h.seg[:]
		n, err := w.Copier.Copy(h.Payload, p.Payload)
		if err != nil {
			return faultReason(err)
		} else if n != uint64(p.PayloadLen) {
			return DropBadFrame
		}
	}
	h.Meta, h.Src, h.Dst, h.From, h.fault = p.Meta, p.Src, p.Dst, p.From, p.fault
	h.Verdict, h.Progress = Verdict{}, Progress{}
	return DropNone
}

// reserve gives an entry with a buffer of n bytes; nil if the bounds allow none: those of what is held back, or of what
// goes through in order.
func (l *line) reserve(n int, inOrder bool) *heldSegment {
	l.mu.Lock()
	defer l.mu.Unlock()
	count, bytes, maxCount, maxBytes := &l.count, &l.bytes, l.maxCount, l.maxBytes
	if inOrder {
		count, bytes, maxCount, maxBytes = &l.queueCount, &l.queueBytes, maxQueued, maxQueuedBytes
	}
	if l.closed || *count >= maxCount {
		return nil
	}
	free, size := &l.small, max(n, min(minBuf, maxBytes))
	if n > largeFrom {
		free, size = &l.large, max(n, min(largeBuf, maxBytes))
	}
	if size > maxBytes-*bytes {
		return nil
	}
	h := free.take(maxBytes - *bytes)
	if h == nil {
		h = new(heldSegment)
		h.run[0] = &h.Packet
	}
	if size > len(h.buf) {
		h.buf = make([]byte, size)
		h.region = dma.NewBuffer(h.buf, dma.Wire)
	}
	*count++
	*bytes += len(h.buf)
	h.inOrder = inOrder
	return h
}

// put adds an entry to those held. Nobody does so once the line is closed.
func (l *line) put(h *heldSegment) {
	l.mu.Lock()
	l.held = append(l.held, h)
	first := len(l.held) == 1
	if h.due < l.due.Load() {
		l.due.Store(h.due)
	}
	l.mu.Unlock()
	l.start()
	if first { // else the goroutine waits for one that is let go no later
		signal(l.kick)
	}
}

// recycle takes an entry back that is not held any more, and keeps it for the next packet if there are not many.
func (l *line) recycle(h *heldSegment) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h.inOrder {
		l.queueCount--
		l.queueBytes -= len(h.buf)
	} else {
		l.count--
		l.bytes -= len(h.buf)
	}
	if l.small.bytes+l.large.bytes+len(h.buf) > keepBytes {
		return
	}
	if len(h.buf) > largeFrom {
		l.large.put(h)
	} else {
		l.small.put(h)
	}
}

// popDue takes out the first entry that goes before segment seq, nil if there is none.
func (l *line) popDue(seq uint64) *heldSegment {
	return l.pop(func(h, best *heldSegment) bool { return h.due <= seq && (best == nil || h.due < best.due) })
}

// popLate takes out the first entry that was held for long enough.
func (l *line) popLate(now time.Time) *heldSegment {
	return l.pop(func(h, best *heldSegment) bool {
		return !h.late.After(now) && (best == nil || h.late.Before(best.late))
	})
}

// pop takes out the entry that is better than all others.
func (l *line) pop(better func(h, best *heldSegment) bool) *heldSegment {
	l.mu.Lock()
	defer l.mu.Unlock()
	var best *heldSegment
	at := -1
	for i, h := range l.held {
		if better(h, best) {
			best, at = h, i
		}
	}
	if best == nil {
		return nil
	}
	l.held = slices.Delete(l.held, at, at+1)
	due := uint64(never)
	for _, h := range l.held {
		due = min(due, h.due)
	}
	l.due.Store(due)
	return best
}

// send lets an entry go. If its port is busy it is tried again later, by the line's goroutine.
func (l *line) send(w *Worker, h *heldSegment) {
	l.beyond(w, h.run[:])
	if h.Verdict.Kind == Busy {
		wait := l.wait
		if h.Verdict.Until != 0 {
			wait = shape.Until(h.Verdict.Until)
		} else {
			h.tries++
		}
		if h.tries < maxTries {
			h.due, h.late = never, time.Now().Add(wait)
			l.put(h)
			return
		}
		l.link.count.dropped(DropDelay)
	}
	l.recycle(h)
}

// run lets go of what was held for long enough.
func (l *line) run() {
	defer close(l.done)
	w := NewWorker()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-l.stop:
			return
		case <-l.kick:
		case <-timer.C:
		}
		for h := l.popLate(time.Now()); h != nil; h = l.popLate(time.Now()) {
			w.busy = w.busy[:0]
			l.sendLate(w, h)
		}
		l.sendQueue(w)
		timer.Reset(l.nextLate())
	}
}

// sendLate is send on the line's goroutine, which is not inside the link.
func (l *line) sendLate(w *Worker, h *heldSegment) {
	if !l.link.enter() {
		l.link.count.dropped(DropDelay)
		l.recycle(h)
		return
	}
	defer l.link.leave()
	l.send(w, h)
}

// nextLate says how long until something has been held for long enough.
func (l *line) nextLate() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	d := time.Hour
	now := time.Now()
	for _, h := range l.held {
		d = min(d, h.late.Sub(now))
	}
	if h := l.queue.first(); h != nil {
		d = min(d, h.late.Sub(now))
	}
	return max(d, 0)
}

// beyond sends packets on to what lies behind the line.
func (l *line) beyond(w *Worker, run []*Packet) {
	if l.lv == levelUp {
		l.link.forward(w, run)
	} else {
		l.link.fit(w, run)
	}
}

// delays says whether packets go through the line in order.
func (c *chances) delays() bool { return c.Delay > 0 || c.Jitter > 0 || c.Rate > 0 }

// delay takes packets into the line, in order. Where there is no place for one, it and all behind it wait until there
// is.
func (l *line) delay(w *Worker, c *chances, run []*Packet) {
	for i, p := range run {
		h := l.reserve(int(p.PayloadLen), true)
		if h == nil {
			v := Verdict{Kind: Busy, Until: shape.Now() + int64(max(l.nextLate(), time.Millisecond))}
			setAll(run[i:], v)
			w.setBusy(l.link, v)
			return
		}
		r := h.fill(w, p)
		if r == DropNone {
			r = l.enqueue(c, h)
		}
		if r != DropNone {
			l.recycle(h)
			l.link.count.drop(p, r)
			continue
		}
		p.Verdict = Verdict{Kind: Taken}
	}
}

// enqueue puts a filled entry into the queue of the link, and says when it is through. It is lost where the queue is
// full.
func (l *line) enqueue(c *chances, h *heldSegment) DropReason {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return DropStopped
	}
	now := time.Now()
	at := now
	if c.Rate > 0 {
		if l.departed.After(now) {
			at = l.departed
		}
		waits, n := at.Sub(now).Seconds()*c.Rate, float64(h.WireLen())
		if waits > 0 && waits+n > float64(c.Limit)+0.5 { // but for rounding
			return DropLinkQueue
		}
		if c.ECN && waits > float64(c.Limit)/2 && h.fault.kind == passes && capable(&h.Packet) {
			h.fault.kind = marked
		}
		at = at.Add(time.Duration(n / c.Rate * 1e9))
		l.departed = at
	}
	h.late = at.Add(c.Delay)
	if c.Jitter > 0 {
		l.jitterDraws++
		h.late = h.late.Add(time.Duration((float64(c.draw(l.jitterDraws, 6)>>11)/(1<<52) - 1) * float64(c.Jitter)))
	}
	last := l.queue.last()
	if last != nil && h.late.Before(last.late) {
		h.late = last.late
	}
	h.due, h.tries = never, 0
	l.queue.push(h)
	l.queued.Add(1)
	l.start()
	if last == nil {
		signal(l.kick)
	}
	return DropNone
}

// sendQueue sends what is through.
func (l *line) sendQueue(w *Worker) {
	for {
		l.mu.Lock()
		h := l.queue.first()
		l.mu.Unlock()
		if h == nil || h.late.After(time.Now()) {
			return
		}
		w.busy = w.busy[:0]
		if !l.link.enter() {
			l.link.count.dropped(DropDelay)
		} else {
			l.beyond(w, h.run[:])
			l.link.leave()
		}
		wait := l.wait
		if v := &h.Verdict; v.Kind == Busy && v.Until != 0 {
			wait = shape.Until(v.Until)
		} else if v.Kind == Busy {
			h.tries++
		}
		l.mu.Lock()
		if h.Verdict.Kind == Busy && h.tries < maxTries {
			h.late = time.Now().Add(wait) // those behind it wait, too
			l.mu.Unlock()
			return
		}
		l.queue.pop()
		l.queued.Add(-1)
		l.mu.Unlock()
		if h.Verdict.Kind == Busy {
			l.link.count.dropped(DropDelay)
		}
		l.recycle(h)
	}
}

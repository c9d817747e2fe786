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
	maxTries = 8 // how often an entry meets a port without buffers until it is dropped
	// The least length of an entry's buffer, for payload of up to largeFrom bytes, and for longer payload; of a held
	// segment's at most line.maxBytes.
	minBuf    = 2 << 10
	largeFrom = 16 << 10
	largeBuf  = 64 << 10
	keepBytes = 8 << 20 // most bytes of unused buffers that a line keeps
	// Bounds of the packets that a line queues in order.
	maxQueued      = 1 << 14
	maxQueuedBytes = 64 << 20
)

// line is the delay line of one direction of a link. It holds segments back (Impairment.Reorder). While the link has a
// delay, a jitter or a rate, or earlier packets are queued, it queues the other packets, in order. It copies payload to
// buffers of its own.
type line struct {
	link     *Link
	lv       int
	queued   atomic.Int64
	maxCount int
	maxBytes int
	wait     time.Duration
	due      atomic.Uint64 // the lowest due of the held segments, or never
	kick     chan struct{}
	stop     chan struct{}
	done     chan struct{}
	begin    sync.Once

	mu     sync.Mutex // not held while copying or delivering
	held   []*heldSegment
	small  pool
	large  pool
	count  int // segments held, being filled or being sent
	bytes  int
	closed bool

	queue       deque
	queueBytes  int // buffer bytes of entries for queue: in the queue, being filled or being sent
	queueCount  int
	departed    time.Time // when the last packet leaves the queue of a link with a rate
	jitterDraws uint64
}

type pool struct {
	list  []*heldSegment
	bytes int
}

// take removes and returns the last entry, if there is one and its buffer is not longer than most bytes; otherwise it
// returns nil.
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

// heldSegment is an entry of a delay line: a segment that is held back, or a packet that is queued in order.
type heldSegment struct {
	Packet
	hdr    [splitter.MaxHeader]byte
	buf    []byte
	region *dma.Region
	seg    [1]dma.Segment
	run    [1]*Packet
	due    uint64 // the entry is sent before the segment with this number; never: only at the time late
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

func (l *line) start() { l.begin.Do(func() { dma.Go(l.run) }) }

func (l *line) close() {
	close(l.stop)
	l.begin.Do(func() { close(l.done) })
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

// hold keeps a copy of a segment, to be sent before segment due or after HoldMax, whichever is first. It returns false
// if there is no room, with *r unchanged, or if the copy failed, with the reason in *r.
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

// reserve returns an entry with a buffer of at least n bytes, or nil if the line is full or closed.
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

func (l *line) put(h *heldSegment) {
	l.mu.Lock()
	l.held = append(l.held, h)
	first := len(l.held) == 1
	if h.due < l.due.Load() {
		l.due.Store(h.due)
	}
	l.mu.Unlock()
	l.start()
	if first {
		signal(l.kick)
	}
}

// recycle gives back an entry's room in the line, and may keep its memory.
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

func (l *line) popDue(seq uint64) *heldSegment {
	return l.pop(func(h, best *heldSegment) bool { return h.due <= seq && (best == nil || h.due < best.due) })
}

func (l *line) popLate(now time.Time) *heldSegment {
	return l.pop(func(h, best *heldSegment) bool {
		return !h.late.After(now) && (best == nil || h.late.Before(best.late))
	})
}

func (l *line) pop(better func(h, best *heldSegment) bool) *heldSegment {
	l.mu.Lock()
	defer l.mu.Unlock()
	var best *heldSegment
	last := -1
	for i, h := range l.held {
		if better(h, best) {
			best, last = h, i
		}
	}
	if best == nil {
		return nil
	}
	l.held = slices.Delete(l.held, last, last+1)
	due := uint64(never)
	for _, h := range l.held {
		due = min(due, h.due)
	}
	l.due.Store(due)
	return best
}

// send sends a held segment. If the port is busy, send puts the entry back; but when the port had no buffers for the
// maxTries-th time, it drops the entry.
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

func (l *line) sendLate(w *Worker, h *heldSegment) {
	if !l.link.enter() {
		l.link.count.dropped(DropDelay)
		l.recycle(h)
		return
	}
	defer l.link.leave()
	l.send(w, h)
}

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

// beyond passes packets that leave the line on: to the switch on a link's way up, to the port on its way down.
func (l *line) beyond(w *Worker, run []*Packet) {
	if l.lv == levelUp {
		l.link.forward(w, run)
	} else {
		l.link.fit(w, run)
	}
}

func (c *chances) delays() bool { return c.Delay > 0 || c.Jitter > 0 || c.Rate > 0 }

// delay puts packets into the line, in order, or drops packets that it cannot copy or that do not fit into the queue of
// the link's rate. If the line has no room for a packet, this packet and those behind it become Busy.
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

// enqueue puts a filled entry into the queue, and sets when it is to be sent. It returns DropNone, or the reason to
// drop the entry.
func (l *line) enqueue(c *chances, h *heldSegment) DropReason {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return DropStopped
	}
	now := time.Now()
	due := now
	if c.Rate > 0 {
		if l.departed.After(now) {
			due = l.departed
		}
		waits, n := due.Sub(now).Seconds()*c.Rate, float64(h.WireLen())
		if waits > 0 && waits+n > float64(c.Limit)+0.5 { // 0.5 for rounding errors
			return DropLinkQueue
		}
		if c.ECN && waits > float64(c.Limit)/2 && h.fault.kind == passes && capable(&h.Packet) {
			h.fault.kind = marked
		}
		due = due.Add(time.Duration(n / c.Rate * 1e9))
		l.departed = due
	}
	h.late = due.Add(c.Delay)
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
			h.late = time.Now().Add(wait) // packets behind it wait too
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

package wire

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/shape"
	"vnic.dev/vnic/splitter"
)

const (
	never    = math.MaxUint64
	maxTries = 8 // of a segment whose port is busy, one each HoldMax
	minBuf   = 2 << 10
	keepBuf  = 16 << 10 // buffers up to this size are kept for the next segment
)

// line is a delay line: it holds segments back until enough later ones have overtaken them, or for long enough. Payload
// is copied to buffers of the wire's own, so the sender's are free.
type line struct {
	im       *impaired
	maxCount int
	maxBytes int
	wait     time.Duration
	due      atomic.Uint64 // the lowest due of all that are held; never if none
	kick     chan struct{} // capacity 1: something is held
	stop     chan struct{}
	done     chan struct{} // closed when the goroutine has ended

	mu     sync.Mutex // never held while copying or delivering
	held   []*heldSegment
	free   []*heldSegment
	count  int // held, or being filled or sent
	bytes  int
	closed bool
}

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
}

func newLine(im *impaired, o *Impairment) *line {
	l := &line{
		im: im, maxCount: cmp.Or(o.MaxPackets, defaultMaxPackets), maxBytes: cmp.Or(o.MaxBytes, defaultMaxBytes),
		wait: cmp.Or(o.HoldMax, defaultHold),
		kick: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
	}
	l.due.Store(never)
	dma.Go(l.run)
	return l
}

// close ends the goroutine and drops what is held.
func (l *line) close() {
	close(l.stop)
	<-l.done
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for _, h := range l.held {
		l.im.link.count.dropped(DropDelay)
		l.bytes -= len(h.buf)
	}
	l.count -= len(l.held)
	l.held = nil
	l.due.Store(never)
}

// hold takes a copy of a segment, to be let go before segment due passes. It is false if there is no room, and then the
// segment goes on at once, or if it could not be copied: then r says why.
func (l *line) hold(w *Worker, p *Packet, due uint64, r *DropReason) bool {
	h := l.reserve(int(p.PayloadLen))
	if h == nil {
		l.im.link.count.delayFull.Add(1)
		return false
	}
	h.Header = h.hdr[:copy(h.hdr[:], p.Header)]
	h.Payload, h.PayloadLen = nil, p.PayloadLen
	if p.PayloadLen > 0 {
		h.seg[0] = dma.Segment{Region: h.region, Len: p.PayloadLen}
		h.Payload = h.seg[:]
		n, err := w.Copier.Copy(h.Payload, p.Payload)
		if err != nil {
			*r = faultReason(err)
		} else if n != uint64(p.PayloadLen) {
			*r = DropBadFrame
		}
		if *r != DropNone {
			l.recycle(h)
			return false
		}
	}
	h.Meta, h.Src, h.Dst, h.From = p.Meta, p.Src, p.Dst, p.From
	h.Verdict, h.Progress = Verdict{}, Progress{}
	h.due, h.late, h.tries = due, time.Now().Add(l.wait), 0
	l.im.link.count.held.Add(1)
	l.put(h)
	return true
}

// reserve gives an entry with a buffer of n bytes; nil if the bounds allow none.
func (l *line) reserve(n int) *heldSegment {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.count >= l.maxCount {
		return nil
	}
	var h *heldSegment
	if k := len(l.free); k > 0 {
		h = l.free[k-1]
	} else {
		h = new(heldSegment)
		h.run[0] = &h.Packet
		l.free = append(l.free, h)
	}
	if size := max(n, len(h.buf), min(minBuf, l.maxBytes)); size > l.maxBytes-l.bytes {
		return nil
	} else if size > len(h.buf) {
		h.buf = make([]byte, size)
		h.region = dma.NewBuffer(h.buf, dma.Wire)
	}
	l.free = l.free[:len(l.free)-1]
	l.count++
	l.bytes += len(h.buf)
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
	if first { // else the goroutine waits for one that is let go no later
		signal(l.kick)
	}
}

// recycle takes an entry back that is not held any more.
func (l *line) recycle(h *heldSegment) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count--
	l.bytes -= len(h.buf)
	if len(h.buf) > keepBuf {
		h.buf, h.region = nil, nil
	}
	l.free = append(l.free, h)
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
	l.im.on(w, h.run[:])
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
		l.im.link.count.dropped(DropDelay)
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
		timer.Reset(l.nextLate())
	}
}

// sendLate is send on the line's goroutine, which is not inside the link.
func (l *line) sendLate(w *Worker, h *heldSegment) {
	if !l.im.link.enter() {
		l.im.link.count.dropped(DropDelay)
		l.recycle(h)
		return
	}
	defer l.im.link.leave()
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
	return max(d, 0)
}

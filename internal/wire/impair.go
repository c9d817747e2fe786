package wire

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"vnic.dev/vnic/splitter"
)

const (
	defaultDepth      = 3
	defaultHold       = 10 * time.Millisecond
	defaultMaxPackets = 256
	defaultMaxBytes   = 4 << 20
)

type impaired struct {
	link *Link
	lv   int
	now  atomic.Pointer[chances]
	next atomic.Uint64
	line *line
}

func newImpaired(l *Link, lv int, im Impairment) *impaired {
	if !im.does() {
		return nil
	}
	x := &impaired{link: l, lv: lv, line: newLine(l, lv, &im)}
	x.now.Store(newChances(im, lv, 0, nil))
	return x
}

// Impair replaces the impairments of the packets that the port sends (up) and receives (down); but a
// direction keeps HoldMax, MaxPackets and MaxBytes of the first impairment that did anything. Impair changes
// nothing, and returns an error, if an impairment is invalid (ErrBadImpairment) or the link is detached
// (ErrDetached).
func (l *Link) Impair(up, down Impairment) error {
	for _, im := range []*Impairment{&up, &down} {
		if err := im.check(); err != nil {
			return fmt.Errorf("port %s: %w", l.Name(), err)
		}
	}
	l.sw.mu.Lock()
	defer l.sw.mu.Unlock()
	if !slices.Contains(l.sw.ports.Load().list, l) {
		return fmt.Errorf("port %s: %w", l.Name(), ErrDetached)
	}
	for _, d := range []struct {
		dir *atomic.Pointer[impaired]
		lv  int
		im  Impairment
	}{{&l.up, levelUp, up}, {&l.down, levelDown, down}} {
		if x := d.dir.Load(); x != nil {
			x.now.Store(newChances(d.im, d.lv, x.next.Load(), x.now.Load()))
		} else {
			d.dir.Store(newImpaired(l, d.lv, d.im))
		}
	}
	return nil
}

func (im *impaired) close() {
	if im != nil {
		im.line.close()
	}
}

// mix64 is the finalizer of splitmix64.
func mix64(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// clear returns how many of the n segments from seq on come before the first whose fate is not passes, or before which
// a held segment is due. It ignores Impairment.Drop.
func (im *impaired) clear(c *chances, seq, n uint64) uint64 {
	if due := im.line.due.Load(); due < seq+n {
		n = due - min(seq, due)
	}
	return c.passing(seq, n)
}

// on passes packets on: through the queue of the delay line if the impairment has a delay, a jitter or a rate, or if
// the queue has packets; otherwise directly.
func (im *impaired) on(w *Worker, c *chances, run []*Packet) {
	if len(run) > 0 && (c.delays() || im.line.queued.Load() > 0) {
		im.line.delay(w, c, run)
		return
	}
	im.beyond(w, run)
}

func (im *impaired) beyond(w *Worker, run []*Packet) {
	switch {
	case len(run) == 0:
	case im.lv == levelUp:
		im.link.forward(w, run)
	default:
		im.link.fit(w, run)
	}
}

func (im *impaired) pass(w *Worker, batch []*Packet) {
	start := 0
	c := im.now.Load()
	for i, p := range batch {
		if r := admit(p); r != DropNone && r != unplaced {
			continue // it gets no segment number: Link.forward drops it
		}
		progress := p.Progress.up()
		if im.lv == levelDown {
			progress = p.levelOn(levelDown, im.link)
		}
		n := uint64(p.Segments())
		if !progress.known {
			progress.known, progress.seq = true, im.next.Add(n)-n
		}
		if progress.done == 0 && (c.drop == nil || p.Meta.Headers.Class != splitter.TCP) &&
			im.clear(c, progress.seq, n) == n {
			continue
		}
		im.on(w, c, batch[start:i])
		start = i + 1
		if v, busy := w.busyWith(im.link); busy {
			setAll(batch[i:], v)
			return
		}
		im.cut(w, c, batch[i:start], progress, n)
	}
	if v, busy := w.busyWith(im.link); busy {
		setAll(batch[start:], v)
		return
	}
	im.on(w, c, batch[start:])
}

// cut applies the impairment to the segments of one packet that are not finished yet, and passes on segments that are
// not lost or held back. If one of these is Busy, cut stops, and the packet is Busy, too.
func (im *impaired) cut(w *Worker, c *chances, one []*Packet, progress *level, segments uint64) {
	p, st := one[0], &w.stages[im.lv]
	p.Verdict = Verdict{}
	s := &st.cutter
	if s.Init(p.Header, &p.Meta, p.PayloadLen) != nil {
		im.link.count.drop(p, DropBadGSO)
		return
	}
	mss := uint64(s.MSS())
	from := cursor{segs: p.Payload}
	from.skip(progress.done)
	// size returns where segment i ends in the payload, and its length.
	size := func(i uint64) (end, n uint32) {
		end = uint32(min((i+1)*mss, uint64(p.PayloadLen)))
		return end, end - uint32(min(i*mss, uint64(p.PayloadLen)))
	}
	drops := func(i uint64) bool {
		if c.drop == nil {
			return false
		}
		_, n := size(i)
		return c.drop.hits(&p.Meta.Headers, p.Meta.Headers.Seq+uint32(i*mss), n, max(n, uint32(p.Meta.GSOSize)))
	}
	for i := uint64(progress.done) / mss; i < segments; {
		im.release(w, progress.seq+i)
		f, due := c.fateOf(p, progress.seq+i)
		if drops(i) {
			f = lost
		}
		j := i + 1
		if f == passes && c.drop == nil {
			j += im.clear(c, progress.seq+j, segments-j)
		} else if f == passes {
			for j < segments && im.clear(c, progress.seq+j, 1) == 1 && !drops(j) {
				j++
			}
		}
		end := uint32(min(j*mss, uint64(p.PayloadLen)))
		switch {
		case f == lost:
			if _, n := size(i); c.drop != nil {
				if im.lv == levelUp && i < 8*maxNoted {
					p.Progress.dropped[i/64] |= 1 << (i % 64)
				}
				c.drop.lost(&p.Meta.Headers, p.Meta.Headers.Seq+uint32(i*mss), n)
			}
			im.lose(w, &st.piece, p, &from, progress.done, end-progress.done)
		case f == passes && i == 0 && j == segments:
			im.on(w, c, one)
			return
		default:
			x := &st.piece
			r := x.cut(s, p, &from, progress.done, end-progress.done)
			if r == DropNone && f == held && im.line.hold(w, &x.Packet, due, &r) {
				progress.taken = true
				progress.held++
			} else if r == DropNone {
				if f == corrupt || f == marked {
					x.fault = fault{f, c.draw(progress.seq+i, 5)}
				}
				x.resume(p, im.lv)
				im.on(w, c, st.run[:])
				if x.Verdict.Kind == Busy {
					p.suspend(&x.Packet, im.lv)
					return
				}
				p.finished(im.lv)
				progress.taken = progress.taken || x.Verdict.Kind == Taken
				p.Verdict = x.Verdict
				if f == twice {
					im.again(w, c, x)
				}
			}
			if r != DropNone {
				im.link.count.drop(p, r)
			}
		}
		progress.done, i = end, j
	}
	if progress.taken {
		p.Verdict = Verdict{Kind: Taken}
	} else if p.Verdict.Kind != Dropped {
		p.Verdict = Drop(DropLinkLoss)
	}
}

// again sends a piece a second time, for Impairment.Duplicate. It drops the duplicate if it is Busy.
func (im *impaired) again(w *Worker, c *chances, x *piece) {
	busy := len(w.busy)
	x.Verdict, x.Progress = Verdict{}, Progress{}
	im.on(w, c, w.stages[im.lv].run[:])
	if x.Verdict.Kind == Busy {
		w.busy = w.busy[:busy] // no sender waits for a duplicate
		im.link.count.dropped(DropDelay)
		return
	}
	im.link.count.duplicated.Add(1)
}

// lose counts the segment with payload [off, off+n) of a packet as lost, and moves the cursor past it. On the
// receiver's link it also reports the segment to the tap.
func (im *impaired) lose(w *Worker, x *piece, p *Packet, from *cursor, off, n uint32) {
	im.link.count.dropped(DropLinkLoss)
	here := *from
	from.skip(n)
	if im.lv == levelDown && im.link.Tap() != nil && x.cut(&w.stages[im.lv].cutter, p, &here, off, n) == DropNone {
		im.link.missed(w, &x.Packet, DropLinkLoss)
	}
}

// resume copies the packet's progress to a piece, and then clears the piece's levels 0 to lv.
func (x *piece) resume(p *Packet, lv int) {
	x.Progress = p.Progress
	for i := range lv + 1 {
		x.Progress.level[i] = level{}
	}
}

// suspend copies to the packet the verdict of its piece x, which is Busy, and x's progress on the levels after lv.
func (p *Packet) suspend(x *Packet, lv int) {
	p.Verdict = x.Verdict
	p.Progress.link, p.Progress.arrives = x.Progress.link, x.Progress.arrives
	copy(p.Progress.level[lv+1:], x.Progress.level[lv+1:])
}

func (p *Packet) finished(lv int) {
	clear(p.Progress.level[lv+1:])
	p.Progress.arrives = 0
}

func (im *impaired) release(w *Worker, seq uint64) {
	for im.line.due.Load() <= seq {
		h := im.line.popDue(seq)
		if h == nil {
			return
		}
		im.line.send(w, h)
	}
}

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

// impaired is one direction of a link that is impaired, or was.
type impaired struct {
	link *Link
	lv   int                     // levelUp or levelDown
	now  atomic.Pointer[chances] // changed by Link.Impair
	next atomic.Uint64           // number of the next segment
	line *line                   // nil: nothing was ever held back
}

// newImpaired gives nil for an impairment that does nothing.
func newImpaired(l *Link, lv int, im Impairment) *impaired {
	if !im.does() {
		return nil
	}
	x := &impaired{link: l, lv: lv, line: newLine(l, lv, &im)}
	x.now.Store(newChances(im, lv, 0, nil))
	return x
}

// Impair changes what the link does to what its port sends, and to what it receives. Segments are counted on. What is
// in a delay line goes as it would have gone. A link that is being detached is left as it is.
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
		at *atomic.Pointer[impaired]
		lv int
		im Impairment
	}{{&l.up, levelUp, up}, {&l.down, levelDown, down}} {
		if x := d.at.Load(); x != nil {
			x.now.Store(newChances(d.im, d.lv, x.next.Load(), x.now.Load()))
		} else {
			d.at.Store(newImpaired(l, d.lv, d.im))
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

// clear is how many segments, from seq on and of n, all pass, with no held one to be let go among them.
func (im *impaired) clear(c *chances, seq, n uint64) uint64 {
	if due := im.line.due.Load(); due < seq+n {
		n = due - min(seq, due)
	}
	return c.passing(seq, n)
}

// on sends packets on to what lies behind the link, or into the delay line on the way to it.
func (im *impaired) on(w *Worker, c *chances, run []*Packet) {
	if len(run) > 0 && (c.delays() || im.line.queued.Load() > 0) {
		im.line.delay(w, c, run)
		return
	}
	im.beyond(w, run)
}

// beyond sends packets on to what lies behind the link and its delay line.
func (im *impaired) beyond(w *Worker, run []*Packet) {
	switch {
	case len(run) == 0:
	case im.lv == levelUp:
		im.link.forward(w, run)
	default:
		im.link.fit(w, run)
	}
}

// pass brings packets over the link.
func (im *impaired) pass(w *Worker, batch []*Packet) {
	start := 0
	c := im.now.Load()
	for i, p := range batch {
		if r := admit(p); r != DropNone && r != unplaced {
			continue // forward drops it, and does not count it as a segment
		}
		at := p.Progress.up()
		if im.lv == levelDown {
			at = p.at(levelDown, im.link)
		}
		n := uint64(p.Segments())
		if !at.known {
			at.known, at.seq = true, im.next.Add(n)-n
		}
		if at.done == 0 && (c.drop == nil || p.Meta.Headers.Class != splitter.TCP) && im.clear(c, at.seq, n) == n {
			continue
		}
		im.on(w, c, batch[start:i])
		start = i + 1
		if v, busy := w.busyWith(im.link); busy {
			setAll(batch[i:], v)
			return
		}
		im.cut(w, c, batch[i:start], at, n)
	}
	if v, busy := w.busyWith(im.link); busy {
		setAll(batch[start:], v)
		return
	}
	im.on(w, c, batch[start:])
}

// cut brings one packet over the link, in pieces.
func (im *impaired) cut(w *Worker, c *chances, one []*Packet, at *level, segments uint64) {
	p, st := one[0], &w.stages[im.lv]
	p.Verdict = Verdict{}
	s := &st.cutter
	if s.Init(p.Header, &p.Meta, p.PayloadLen) != nil {
		im.link.count.drop(p, DropBadGSO)
		return
	}
	mss := uint64(s.MSS())
	from := cursor{segs: p.Payload}
	from.skip(at.done)
	// size is where segment i ends and how long it is, drops whether it is one of Impairment.Drop.
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
	for i := uint64(at.done) / mss; i < segments; {
		im.release(w, at.seq+i)
		f, due := c.fateOf(p, at.seq+i)
		if drops(i) {
			f = lost
		}
		j := i + 1
		if f == passes && c.drop == nil {
			j += im.clear(c, at.seq+j, segments-j)
		} else if f == passes {
			for j < segments && im.clear(c, at.seq+j, 1) == 1 && !drops(j) {
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
			im.lose(w, &st.piece, p, &from, at.done, end-at.done)
		case f == passes && i == 0 && j == segments:
			im.on(w, c, one) // whole, after what had to be let go
			return
		default:
			x := &st.piece
			r := x.cut(s, p, &from, at.done, end-at.done)
			if r == DropNone && f == held && im.line.hold(w, &x.Packet, due, &r) {
				at.taken = true
				at.held++
			} else if r == DropNone {
				if f == corrupt || f == marked {
					x.fault = fault{f, c.draw(at.seq+i, 5)}
				}
				x.resume(p, im.lv)
				im.on(w, c, st.run[:])
				if x.Verdict.Kind == Busy {
					p.suspend(&x.Packet, im.lv)
					return
				}
				p.finished(im.lv)
				at.taken = at.taken || x.Verdict.Kind == Taken
				p.Verdict = x.Verdict
				if f == twice {
					im.again(w, c, x)
				}
			}
			if r != DropNone {
				im.link.count.drop(p, r)
			}
		}
		at.done, i = end, j
	}
	if at.taken {
		p.Verdict = Verdict{Kind: Taken}
	} else if p.Verdict.Kind != Dropped {
		p.Verdict = Drop(DropLinkLoss)
	}
}

// again sends a piece that has gone a second time, if its receiver takes it at once.
func (im *impaired) again(w *Worker, c *chances, x *piece) {
	busy := len(w.busy)
	x.Verdict, x.Progress = Verdict{}, Progress{}
	im.on(w, c, w.stages[im.lv].run[:])
	if x.Verdict.Kind == Busy {
		w.busy = w.busy[:busy] // nobody waits for a copy
		im.link.count.dropped(DropDelay)
		return
	}
	im.link.count.duplicated.Add(1)
}

// lose loses the piece [off, off+n) of a packet; from is the packet's cursor. The sender's tap
// calls Link.Lost to find pieces that were lost on the way up.
func (im *impaired) lose(w *Worker, x *piece, p *Packet, from *cursor, off, n uint32) {
	im.link.count.dropped(DropLinkLoss)
	here := *from
	from.skip(n)
	if im.lv == levelDown && im.link.Tap() != nil && x.cut(&w.stages[im.lv].cutter, p, &here, off, n) == DropNone {
		im.link.missed(w, &x.Packet, DropLinkLoss)
	}
}

// resume copies the packet's progress to a piece, and resets the levels up to lv.
func (x *piece) resume(p *Packet, lv int) {
	x.Progress = p.Progress
	for i := range lv + 1 {
		x.Progress.level[i] = level{}
	}
}

// suspend notes the progress of a piece that met a busy port.
func (p *Packet) suspend(x *Packet, lv int) {
	p.Verdict = x.Verdict
	p.Progress.link, p.Progress.arrives = x.Progress.link, x.Progress.arrives
	copy(p.Progress.level[lv+1:], x.Progress.level[lv+1:])
}

// finished forgets the progress below lv: a piece is disposed of.
func (p *Packet) finished(lv int) {
	clear(p.Progress.level[lv+1:])
	p.Progress.arrives = 0
}

// release lets go of what is due before segment seq passes.
func (im *impaired) release(w *Worker, seq uint64) {
	for im.line.due.Load() <= seq {
		h := im.line.popDue(seq)
		if h == nil {
			return
		}
		im.line.send(w, h)
	}
}

package wire

import (
	"cmp"
	"fmt"
	"sync/atomic"
	"time"
)

// Impairment is what a bad link does to the segments that pass it in one direction. What happens to
// the n-th segment depends on Seed, the direction and n alone, so the same sequence of segments
// meets the same fate again. A GSO packet counts as its segments, and goes on as the runs that
// survive. The zero value does nothing.
type Impairment struct {
	Seed    uint64
	Loss    float64 // probability that a segment is lost
	Reorder float64 // probability that a segment that is not lost is held back
	// ReorderDepth is how many later segments overtake one that is held back: 1 to ReorderDepth, by chance; 0 means 3.
	ReorderDepth int
	// HoldMax is how long a segment is held back if too few overtake it; 0 means 10 ms.
	HoldMax time.Duration
	// MaxPackets and MaxBytes bound the delay line; beyond them segments are not held back. 0 means 256 and 4 MiB.
	MaxPackets int
	MaxBytes   int
}

const (
	defaultDepth      = 3
	defaultHold       = 10 * time.Millisecond
	defaultMaxPackets = 256
	defaultMaxBytes   = 4 << 20
)

// Lossy says whether segments are lost or held back at all.
func (im *Impairment) Lossy() bool { return im.Loss > 0 || im.Reorder > 0 }

func (im *Impairment) check() error {
	if !(im.Loss >= 0 && im.Loss <= 1) || !(im.Reorder >= 0 && im.Reorder <= 1) {
		return fmt.Errorf("%w: loss %v, reorder %v: not between 0 and 1", ErrBadImpairment, im.Loss, im.Reorder)
	}
	if im.ReorderDepth < 0 || im.HoldMax < 0 || im.MaxPackets < 0 || im.MaxBytes < 0 {
		return fmt.Errorf("%w: negative bound", ErrBadImpairment)
	}
	return nil
}

// impaired is one direction of an impaired link.
type impaired struct {
	link  *Link
	lv    int // levelUp or levelDown
	seed  uint64
	loss  uint64 // of 1<<53
	hold  uint64 // of 1<<53
	depth uint64
	next  atomic.Uint64 // number of the next segment
	line  *line         // nil: nothing is held back
}

// newImpaired gives nil for an impairment that does nothing.
func newImpaired(l *Link, lv int, im Impairment) *impaired {
	if !im.Lossy() {
		return nil
	}
	x := &impaired{link: l, lv: lv, seed: mix64(im.Seed + uint64(lv)), loss: uint64(im.Loss * (1 << 53)),
		hold: uint64(im.Reorder * (1 << 53)), depth: uint64(cmp.Or(im.ReorderDepth, defaultDepth))}
	if im.Reorder > 0 {
		x.line = newLine(x, &im)
	}
	return x
}

func (im *impaired) close() {
	if im != nil && im.line != nil {
		im.line.close()
	}
}

// mix64 is the finalizer of splitmix64.
func mix64(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// fate is what happens to a segment.
type fate uint8

const (
	passes fate = iota
	lost
	held
)

// fate tells what happens to a segment, and before which later one it is let go if it is held.
func (im *impaired) fate(seq uint64) (f fate, due uint64) {
	h := mix64(im.seed + seq*0x9e3779b97f4a7c15)
	if h>>11 < im.loss {
		return lost, 0
	}
	if im.hold == 0 {
		return passes, 0
	}
	if h = mix64(h + 1); h>>11 < im.hold {
		return held, seq + 2 + mix64(h+1)%im.depth
	}
	return passes, 0
}

// clear says whether segments [seq, seq+n) all pass, and no held one has to be let go among them.
func (im *impaired) clear(seq, n uint64) bool {
	if im.line != nil && im.line.due.Load() < seq+n {
		return false
	}
	for i := range n {
		if f, _ := im.fate(seq + i); f != passes {
			return false
		}
	}
	return true
}

// on sends packets on to what lies behind the link.
func (im *impaired) on(w *Worker, run []*Packet) {
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
	for i, p := range batch {
		if r := admit(p); r != DropNone && r != unplaced {
			continue // forward drops it, and does not count it as a segment
		}
		at := &p.Progress.level[levelUp]
		if im.lv == levelDown {
			at = p.at(levelDown, im.link)
		}
		n := uint64(p.Segments())
		if !at.known {
			at.known, at.seq = true, im.next.Add(n)-n
		}
		if at.done == 0 && im.clear(at.seq, n) {
			continue
		}
		im.on(w, batch[start:i])
		start = i + 1
		if v, busy := w.busyWith(im.link); busy && im.lv == levelDown {
			setAll(batch[i:], v)
			return
		}
		im.cut(w, batch[i:start], at, n)
	}
	if v, busy := w.busyWith(im.link); busy && im.lv == levelDown {
		setAll(batch[start:], v)
		return
	}
	im.on(w, batch[start:])
}

// cut brings one packet over the link, in pieces.
func (im *impaired) cut(w *Worker, one []*Packet, at *level, segments uint64) {
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
	for i := uint64(at.done) / mss; i < segments; {
		im.release(w, at.seq+i)
		f, due := im.fate(at.seq + i)
		j := i + 1
		for f == passes && j < segments && im.clear(at.seq+j, 1) {
			j++
		}
		end := uint32(min(j*mss, uint64(p.PayloadLen)))
		switch {
		case f == lost:
			im.lose(w, &st.piece, p, &from, at.done, end-at.done)
		case f == passes && i == 0 && j == segments:
			im.on(w, one) // whole, after what had to be let go
			return
		default:
			x := &st.piece
			r := x.cut(s, p, &from, at.done, end-at.done)
			if r == DropNone && f == held && im.line.hold(w, &x.Packet, due, &r) {
				at.taken = true
				at.held++
			} else if r == DropNone {
				x.resume(p, im.lv)
				im.on(w, st.run[:])
				if x.Verdict.Kind == Busy {
					p.suspend(&x.Packet, im.lv)
					return
				}
				p.finished(im.lv)
				at.taken = at.taken || x.Verdict.Kind == Taken
				p.Verdict = x.Verdict
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

// lose loses the piece [off, off+n) of a packet, of which from is the cursor. What is lost on its
// way up, the sender's tap asks for (Link.Lost).
func (im *impaired) lose(w *Worker, x *piece, p *Packet, from *cursor, off, n uint32) {
	im.link.count.dropped(DropLinkLoss)
	here := *from
	from.skip(n)
	if im.lv == levelDown && im.link.Tap() != nil && x.cut(&w.stages[im.lv].cutter, p, &here, off, n) == DropNone {
		im.link.missed(w, &x.Packet, DropLinkLoss)
	}
}

// resume gives a piece what its packet knows of its progress on the levels below lv.
func (x *piece) resume(p *Packet, lv int) {
	x.Progress = p.Progress
	for i := range lv + 1 {
		x.Progress.level[i] = level{}
	}
}

// suspend notes the progress of a piece that met a busy port.
func (p *Packet) suspend(x *Packet, lv int) {
	p.Verdict = x.Verdict
	p.Progress.link, p.Progress.Arrives = x.Progress.link, x.Progress.Arrives
	copy(p.Progress.level[lv+1:], x.Progress.level[lv+1:])
}

// finished forgets the progress below lv: a piece is disposed of.
func (p *Packet) finished(lv int) {
	clear(p.Progress.level[lv+1:])
	p.Progress.Arrives = 0
}

// release lets go of what is due before segment seq passes.
func (im *impaired) release(w *Worker, seq uint64) {
	if im.line == nil {
		return
	}
	for im.line.due.Load() <= seq {
		h := im.line.popDue(seq)
		if h == nil {
			return
		}
		im.line.send(w, h)
	}
}

package wire

import (
	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/splitter"
)

// maxPieces is the most pieces of a GSO packet that a link passes to its port's Deliver in one call.
const maxPieces = 32

// Worker has the copier and the wire's scratch memory for a sending goroutine. Only one goroutine at a time
// may use it.
type Worker struct {
	Copier *dma.Copier

	busy     []busyLink
	flooding bool
	cutting  bool

	cutter splitter.Segmenter
	pieces [maxPieces]piece
	run    [maxPieces]*Packet
	stages [levelFit]stage

	gone Packet // scratch of Link.GaveUp

	altered    piece
	alteredRun [1]*Packet
	alteredBuf *dma.Region // made when first needed
	alteredSeg [1]dma.Segment

	whole      piece
	wholeRun   [1]*Packet
	csum       [splitter.MaxHeader]byte // start of whole's payload, if that contains the checksum
	csumRegion *dma.Region              // the memory of csum
	csumSegs   []dma.Segment
}

type busyLink struct {
	link    *Link
	verdict Verdict
}

// piece is a part of a packet, or a changed copy, with the memory for its header.
type piece struct {
	Packet
	hdr [splitter.MaxHeader]byte
}

// stage is the scratch memory for impairments of one kind of link: of the sender's (levelUp), or of a receiver's
// (levelDown).
type stage struct {
	cutter splitter.Segmenter
	piece  piece
	run    [1]*Packet
}

// NewWorker makes a Worker.
func NewWorker() *Worker {
	w := &Worker{Copier: dma.NewCopier()}
	w.csumRegion = dma.NewBuffer(w.csum[:], dma.Wire)
	for i := range w.pieces {
		w.run[i] = &w.pieces[i].Packet
	}
	w.wholeRun[0] = &w.whole.Packet
	w.alteredRun[0] = &w.altered.Packet
	for i := range w.stages {
		w.stages[i].run[0] = &w.stages[i].piece.Packet
	}
	return w
}

// Flooding reports, during a port's Deliver, whether the packets go to all links but the sender's: then the switch
// drops Busy packets, and no sender waits.
func (w *Worker) Flooding() bool { return w.flooding }

// Cutting reports, during a port's Deliver, whether the packets are pieces of one GSO packet that the link has cut for
// the port's Limits: then the GSO packet keeps for a retry only the Progress.Arrives of the first Busy piece.
func (w *Worker) Cutting() bool { return w.cutting }

func (w *Worker) busyWith(l *Link) (Verdict, bool) {
	if w.flooding {
		return Verdict{}, false
	}
	for i := range w.busy {
		if w.busy[i].link == l {
			return w.busy[i].verdict, true
		}
	}
	return Verdict{}, false
}

func (w *Worker) setBusy(l *Link, v Verdict) {
	if _, ok := w.busyWith(l); !ok && !w.flooding {
		w.busy = append(w.busy, busyLink{l, v})
	}
}

func setAll(run []*Packet, v Verdict) {
	for _, p := range run {
		p.Verdict = v
	}
}

// cursor is a position in a packet's payload.
type cursor struct {
	segs []dma.Segment
	off  uint32 // bytes of segs[0] before the position
}

// take appends segments with the next n bytes to dst, and moves the cursor behind them. If there are fewer bytes, it
// takes these, and ok is false.
func (c *cursor) take(dst []dma.Segment, n uint32) (out []dma.Segment, ok bool) {
	for n > 0 {
		if len(c.segs) == 0 {
			return dst, false
		}
		s := c.segs[0]
		k := min(s.Len-c.off, n)
		if k > 0 {
			dst = append(dst, dma.Segment{Region: s.Region, Off: s.Off + uint64(c.off), Len: k})
		}
		c.move(k)
		n -= k
	}
	return dst, true
}

func (c *cursor) skip(n uint32) {
	for n > 0 && len(c.segs) > 0 {
		k := min(c.segs[0].Len-c.off, n)
		c.move(k)
		n -= k
	}
}

func (c *cursor) move(k uint32) {
	if c.off += k; c.off == c.segs[0].Len {
		c.segs, c.off = c.segs[1:], 0
	}
}

// cut makes x a piece of p with payload [off, off+n). pos must be at off, and moves behind the piece. cut returns
// DropBadFrame if p's header is too long, its payload too short, or s refuses the piece; else DropNone.
func (x *piece) cut(s *splitter.Segmenter, p *Packet, pos *cursor, off, n uint32) DropReason {
	x.Header = x.hdr[:copy(x.hdr[:], p.Header)]
	if len(p.Header) > len(x.hdr) || s.Piece(x.Header, &x.Meta, off, n) != nil {
		return DropBadFrame
	}
	var ok bool
	if x.Payload, ok = pos.take(dma.Reuse(x.Payload), n); !ok {
		return DropBadFrame
	}
	x.PayloadLen = n
	x.Src, x.Dst, x.Tag, x.From = p.Src, p.Dst, p.Tag, p.From
	x.Verdict, x.Progress, x.fault = Verdict{}, Progress{}, fault{}
	x.origin, _ = p.Origin()
	return DropNone
}

package wire

import (
	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/splitter"
)

// maxPieces is the most pieces of a packet in one call of a port's Deliver.
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

	gone Packet // used by GaveUp

	altered    piece
	alteredRun [1]*Packet
	alteredBuf *dma.Region // made when first needed
	alteredSeg [1]dma.Segment

	whole      piece
	wholeRun   [1]*Packet
	csum       [splitter.MaxHeader]byte // start of whole's payload, if it has the checksum field
	csumRegion *dma.Region              // of csum
	csumSegs   []dma.Segment
}

type busyLink struct {
	link    *Link
	verdict Verdict
}

// piece is a part, or a changed copy, of a packet.
type piece struct {
	Packet
	hdr [splitter.MaxHeader]byte
}

// stage is the scratch for one impaired link.
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

// Flooding reports whether the packets go to all other links, so that no sender waits.
func (w *Worker) Flooding() bool { return w.flooding }

// Cutting reports whether the packets are pieces of one packet that was cut for the port's Limits: of these only
// the first Busy one keeps its Progress.Arrives for a retry.
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
	off  uint32 // bytes used of the first segment
}

// take appends the next n bytes to dst; ok is false if there are fewer.
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

// cut makes a piece of p, with payload [off, off+n), which starts at the cursor.
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

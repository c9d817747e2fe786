package wire

import (
	"errors"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/splitter"
)

func (x *piece) finish(w *Worker) DropReason {
	covered := x.Payload
	if x.Trailed() {
		all := cursor{segs: x.Payload}
		w.csumSegs, _ = all.take(dma.Reuse(w.csumSegs), x.Meta.Headers.PayloadLen())
		covered = w.csumSegs
	}
	sum, err := w.Copier.Sum(covered)
	if err != nil {
		return faultReason(err)
	}
	x.Meta.Complete(x.Header, sum)
	return DropNone
}

func faultReason(err error) DropReason {
	if errors.Is(err, dma.ErrFault) {
		return DropFault
	}
	return DropBadFrame
}

// unplaced is what admit returns for a packet that may pass after the wire has completed its partial checksum: no port
// accepts such a checksum, because the packet is neither TCP nor UDP, or has a trailer.
const unplaced = NumDropReasons

// reachable reports whether the field of an unplaced checksum lies in the bytes that Worker.completed can copy: the
// Header and the next splitter.MaxHeader bytes.
func reachable(p *Packet) bool {
	end := uint32(p.Meta.CsumStart) + uint32(p.Meta.CsumOffset) + 2
	return end <= uint32(len(p.Header))+splitter.MaxHeader
}

// completed makes w.whole a copy of p with its unplaced checksum completed, or returns the reason to drop p. The copy
// refers to p's payload, except for a start of it that has the checksum's field. If the completed bytes parse to
// headers other than p.Meta.Headers, the reason is DropBadCsum.
func (w *Worker) completed(p *Packet) DropReason {
	x := &w.whole
	if len(p.Header) < int(p.Meta.Headers.HdrLen) {
		return DropBadFrame
	}
	from := cursor{segs: p.Payload}
	if !x.describe(p, &from, p.PayloadLen) {
		return DropBadFrame
	}
	var r DropReason
	if x.Trailed() {
		r = x.finish(w)
	} else {
		r = x.sumUnplaced(w)
	}
	if r != DropNone {
		return r
	}
	if splitter.Parse(x.Header, x.Len(), &x.Meta.Headers) != nil || x.Meta.Headers != p.Meta.Headers {
		return DropBadCsum
	}
	return DropNone
}

// describe makes x a copy of p with a header of its own, and the n bytes of payload at a cursor; false: p's
// header is too long, or its payload too short.
func (x *piece) describe(p *Packet, from *cursor, n uint32) (ok bool) {
	if len(p.Header) > len(x.hdr) {
		return false
	}
	x.Header = x.hdr[:copy(x.hdr[:], p.Header)]
	x.Payload, ok = from.take(x.Payload[:0], n)
	x.PayloadLen, x.Meta = n, p.Meta
	x.Src, x.Dst, x.Tag, x.From = p.Src, p.Dst, p.Tag, p.From
	x.origin, _ = p.Origin()
	x.Verdict, x.Progress, x.fault = Verdict{}, p.Progress, p.fault
	return ok
}

// sumUnplaced completes a checksum over the bytes from Meta.CsumStart to the frame's end. If the checksum's field lies
// in the payload, which the wire must not write, sumUnplaced first copies the payload up to the field's end to w.csum.
func (x *piece) sumUnplaced(w *Worker) DropReason {
	start, hdr := uint32(x.Meta.CsumStart), uint32(len(x.Header))
	field := start + uint32(x.Meta.CsumOffset)
	n := uint32(0) // how many bytes of payload to copy
	if field+2 > hdr {
		n = field + 2 - hdr // at most len(w.csum) and PayloadLen, as admit has checked
		all := cursor{segs: x.Payload}
		sum := append(dma.Reuse(w.csumSegs), dma.Segment{Region: w.csumRegion, Len: n})
		if _, err := w.Copier.Copy(sum, x.Payload); err != nil {
			return faultReason(err)
		}
		all.skip(n)
		w.csumSegs, _ = all.take(sum, x.PayloadLen-n)
		x.Payload, w.csumSegs = w.csumSegs, x.Payload
	}
	var sum uint16
	summed := x.Payload
	even := uint32(0)
	if start < hdr {
		sum, even = splitter.Sum(x.Header[start:], 0), hdr-start
	} else {
		rest := cursor{segs: x.Payload}
		rest.skip(start - hdr)
		w.csumSegs, _ = rest.take(dma.Reuse(w.csumSegs), x.Len()-start)
		summed = w.csumSegs
	}
	payload, err := w.Copier.Sum(summed)
	if err != nil {
		return faultReason(err)
	}
	var b [2]byte
	splitter.PutCsum(b[:], splitter.Add(sum, splitter.SumAt(payload, even)), true) // 0xffff is equivalent to 0
	for i, v := range b {
		if off := field + uint32(i); off < hdr {
			x.Header[off] = v
		} else {
			w.csum[off-hdr] = v
		}
	}
	x.Meta.Csum, x.Meta.CsumStart, x.Meta.CsumOffset = splitter.CsumNone, 0, 0
	return DropNone
}

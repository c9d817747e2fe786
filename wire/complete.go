package wire

import (
	"errors"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/splitter"
)

// finish makes the partial checksum of a piece, which is where our own parse has it, a full one.
func (x *piece) finish(w *Worker) DropReason {
	sum, err := w.Copier.Sum(x.Payload)
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

// complete makes a copy of p, but for the payload, with its checksum complete.
func (x *piece) complete(w *Worker, p *Packet) DropReason {
	if w.cutter.Init(p.Header, &p.Meta, p.PayloadLen) != nil {
		return DropBadFrame
	}
	all := cursor{segs: p.Payload}
	if r := x.cut(&w.cutter, p, &all, 0, p.PayloadLen); r != DropNone {
		return r
	}
	if placed(&p.Meta) {
		return x.finish(w)
	}
	return x.sumAnywhere(w)
}

// sumAnywhere completes a checksum that the sender put where only it knows why: it sums from start to the frame's end,
// as any NIC would. The field may lie in the payload, which is not ours to write: then the payload's start is copied.
func (x *piece) sumAnywhere(w *Worker) DropReason {
	start, hdr := uint32(x.Meta.CsumStart), uint32(len(x.Header))
	field := start + uint32(x.Meta.CsumOffset)
	if field+2 > x.Len() {
		return DropBadCsum
	}
	n := uint32(0) // bytes of payload that are copied
	if field+2 > hdr {
		if n = field + 2 - hdr; n > uint32(len(w.csum)) {
			return DropBadCsum
		}
		all := cursor{segs: x.Payload}
		own := append(w.csumSegs[:0], dma.Segment{Region: w.csumRegion, Len: n})
		if _, err := w.Copier.Copy(own, x.Payload); err != nil {
			return faultReason(err)
		}
		all.skip(n)
		w.csumSegs, _ = all.take(own, x.PayloadLen-n)
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
		w.csumSegs, _ = rest.take(w.csumSegs[:0], x.Len()-start)
		summed = w.csumSegs
	}
	payload, err := w.Copier.Sum(summed)
	if err != nil {
		return faultReason(err)
	}
	var b [2]byte
	splitter.PutCsum(b[:], splitter.Add(sum, splitter.SumAt(payload, even)), true) // 0xffff is as good as 0
	for i, v := range b {
		if at := field + uint32(i); at < hdr {
			x.Header[at] = v
		} else {
			w.csum[at-hdr] = v
		}
	}
	x.Meta.Csum, x.Meta.CsumStart, x.Meta.CsumOffset = splitter.CsumNone, 0, 0
	return DropNone
}

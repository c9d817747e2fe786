package wire

import (
	"encoding/binary"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/splitter"
)

// fault is a change of a packet for an Impairment.
type fault struct {
	kind fate   // passes: no change; corrupt (of a packet of one segment); or marked
	draw uint64 // if corrupt: selects the bit to flip
}

// alter makes a copy of a packet, changes it as the packet's fault says, and delivers it to the link's port. If it
// cannot, it drops the packet.
func (l *Link) alter(w *Worker, p *Packet) {
	x := &w.altered
	from := cursor{segs: p.Payload}
	r := DropBadFrame
	if x.describe(p, &from, p.PayloadLen) {
		x.fault = fault{}
		r = DropNone
		if p.fault.kind == marked {
			if x.mark() {
				l.count.marked.Add(1)
			}
		} else if r = x.corrupt(w, p.fault.draw); r == DropNone {
			l.count.corrupted.Add(1)
		}
	}
	if r != DropNone {
		l.count.drop(p, r)
		return
	}
	l.fit(w, w.alteredRun[:])
	p.Verdict, p.Progress = x.Verdict, x.Progress
}

// ecn returns the header's byte with the ECN bits, and their shift in it; nil: the packet is not TCP in IP.
func ecn(p *Packet) (b *byte, shift int) {
	h := &p.Meta.Headers
	if h.Class != splitter.TCP || int(h.L3Off)+20 > len(p.Header) {
		return nil, 0
	}
	if h.IPv6 { // the last two bits of the traffic class
		shift = 4
	}
	return &p.Header[h.L3Off+1], shift
}

// capable reports whether the packet is TCP and ECN-capable (RFC 3168, 5).
func capable(p *Packet) bool {
	b, shift := ecn(p)
	return b != nil && *b>>shift&3 != 0
}

// mark sets Congestion Experienced (RFC 3168, 5), and updates the checksum of an IPv4 header (RFC 1624). If the packet
// is not TCP in IP, mark changes nothing and returns false.
func (x *piece) mark() bool {
	b, shift := ecn(&x.Packet)
	if b == nil {
		return false
	}
	ip := x.Header[x.Meta.Headers.L3Off:]
	old := binary.BigEndian.Uint16(ip)
	*b |= 3 << shift
	if shift == 0 {
		sum := splitter.Add(splitter.Add(^binary.BigEndian.Uint16(ip[10:]), ^old), binary.BigEndian.Uint16(ip))
		binary.BigEndian.PutUint16(ip[10:], ^sum)
	}
	return true
}

// corrupt flips a bit of the TCP or UDP header or of its payload, after it has completed a partial checksum. Packets
// that are neither TCP nor UDP, and those with more than maxAltered bytes of payload, stay unchanged. A returned
// reason other than DropNone means that the payload's memory could not be used.
func (x *piece) corrupt(w *Worker, draw uint64) DropReason {
	h := &x.Meta.Headers
	if h.Class != splitter.TCP && h.Class != splitter.UDP || int(h.HdrLen) != len(x.Header) || h.L4Off == 0 ||
		x.PayloadLen > maxAltered {
		return DropNone
	}
	covered := h.PayloadLen()
	if x.Meta.Csum == splitter.CsumPartial {
		if r := x.finish(w); r != DropNone {
			return r
		}
	}
	head := uint32(len(x.Header)) - uint32(h.L4Off)
	bit := draw % (8 * uint64(head+covered))
	if off := uint32(bit / 8); off < head {
		x.Header[uint32(h.L4Off)+off] ^= 1 << (bit % 8)
	} else if r := x.flip(w, off-head, 1<<(bit%8)); r != DropNone {
		return r
	}
	x.Meta.Csum, x.Meta.CsumStart, x.Meta.CsumOffset = splitter.CsumNone, 0, 0 // not known to be good any more
	return DropNone
}

const maxAltered = 64 << 10

func (x *piece) flip(w *Worker, off uint32, bits byte) DropReason {
	if w.alteredBuf == nil {
		w.alteredBuf = dma.NewBuffer(make([]byte, maxAltered), dma.Wire)
	}
	whole := dma.Segment{Region: w.alteredBuf, Len: x.PayloadLen}
	w.alteredSeg[0] = whole
	if _, err := w.Copier.Copy(w.alteredSeg[:], x.Payload); err != nil {
		return faultReason(err)
	}
	var b [1]byte
	w.alteredSeg[0] = dma.Segment{Region: w.alteredBuf, Off: uint64(off), Len: 1}
	if _, err := w.Copier.Read(b[:], w.alteredSeg[:]); err != nil {
		return faultReason(err)
	}
	b[0] ^= bits
	if _, err := w.Copier.Write(w.alteredSeg[:], b[:]); err != nil {
		return faultReason(err)
	}
	w.alteredSeg[0] = whole
	x.Payload = append(x.Payload[:0], whole)
	return DropNone
}

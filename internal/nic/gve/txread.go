package gve

import (
	"errors"
	"fmt"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/splitter"
)

const (
	// maxTxBufs bounds the buffers of a packet without TSO descriptor (GVE_TX_MAX_DATA_DESCS).
	maxTxBufs  = 10
	maxTSOBufs = 64
	// Bounds of the MSS of a GSO packet, in bytes (GVE_TX_MIN_TSO_MSS_DQO, gve_prep_tso).
	minMSS, maxMSS = 88, 9728
)

type txSlot struct {
	buf   [nic.MaxHeader]byte // headers
	tag   uint16
	tso   txDesc // TSO descriptor of the packet, if super is set
	super bool
	csum  bool
	n     int // number of buffers
	bufs  [maxTSOBufs]txBuf
	total uint32        // bytes in the buffers
	segs  []dma.Segment // memory of the buffers
}

type txBuf struct {
	addr uint64
	len  uint16
}

// A guest can cause these errors again and again, so they are allocated only once.
var (
	errBadTSO = fmt.Errorf("%w: not the super-packet that its descriptor describes", nic.ErrBadFrame)

	errTooManyBufs = fmt.Errorf("%w: packet of too many", errBadDesc)
	errKind        = fmt.Errorf("%w: of unknown type", errBadDesc)
	errContext     = fmt.Errorf("%w: context inside a packet, or twice", errBadDesc)
)

// Reload implements nic.TxQueue.
func (q *txQueue) Reload(f *nic.TxFrame, moved bool) (ok bool, err error) {
	s := &q.slots[f.Slot]
	if moved {
		err = s.translate(q.space)
	}
	if err == nil {
		err = nic.RelocatePayload(s.segs, 0, s.total, &f.Packet)
	}
	if err != nil {
		q.count.unmapped.add(1)
	}
	return err == nil, nil
}

// Gather implements nic.TxQueue.
func (q *txQueue) Gather(free []*nic.TxFrame) (filled, taken int, err error) {
	defer dma.Recover(&err)
	tail := q.tail.Load()
	for filled < len(free) {
		f := free[filled]
		s := &q.slots[f.Slot]
		posted := (tail - q.head) & q.in.mask
		k, e := q.read(s, posted)
		if e != nil {
			return filled, taken, e
		}
		if k == 0 {
			if q.partly = noTail; posted > 0 {
				q.partly = tail // the rest of the packet is not posted yet
			}
			return filled, taken, nil
		}
		taken++
		q.partly = noTail
		switch e := q.describe(f, s); {
		case e == nil:
			filled++
		case errors.Is(e, nic.ErrBadFrame):
			q.count.bad.add(1)
			q.t.Discard(wire.DropBadFrame)
			q.finish(txPacketDone, s.tag)
		case errors.Is(e, dma.ErrFault): // a fault in the guest's memory file stops the queue
			return filled, taken, e
		default: // the packet's memory is unmapped, unreadable, or in too many segments
			q.count.unmapped.add(1)
			q.t.Discard(wire.DropFault)
			q.finish(txPacketDone, s.tag)
		}
	}
	return filled, taken, nil
}

// read reads the descriptors of the packet at head to s, advances head, and writes the descriptor completion if the
// driver has requested one. posted is the number of descriptors from head on that the driver has posted. read returns
// the number of descriptors read; 0: the packet is not posted completely, or there is an error.
func (q *txQueue) read(s *txSlot, posted uint32) (n uint32, err error) {
	s.n, s.total, s.super, s.csum = 0, 0, false, false
	report := false
	for n < posted {
		var d txDesc
		d.decode((*[txDescLen]byte)(q.in.entryAt(q.head + n))) // decoded once: the driver may rewrite it meanwhile
		n++
		switch d.kind {
		case txPacket:
		case txTSO:
			if s.super || s.n > 0 {
				return 0, errContext
			}
			s.super, s.tso = true, d
			continue
		case txGeneral: // a path hash for multi-path networks, which the device ignores
			if s.n > 0 || n > 2 {
				return 0, errContext
			}
			continue
		default:
			return 0, errKind
		}
		if s.n == maxTSOBufs || s.n == maxTxBufs && !s.super {
			return 0, errTooManyBufs
		}
		if s.n == 0 {
			s.csum, s.tag = d.csum, d.tag
		}
		s.bufs[s.n] = txBuf{d.addr, d.length}
		s.n++
		s.total += uint32(d.length)
		report = report || d.report
		if d.eop {
			q.head += n
			if report {
				q.finish(txDescDone, uint16(q.head&q.in.mask))
			}
			return n, nil
		}
	}
	return 0, nil
}

func (s *txSlot) translate(space *dma.Space) (err error) {
	s.segs = s.segs[:0]
	for i := range s.bufs[:s.n] {
		b := &s.bufs[i]
		s.segs, err = space.TranslateMax(s.segs, len(s.segs)+maxPieces, b.addr, uint64(b.len), dma.Read)
		if err != nil {
			return err
		}
	}
	return nil
}

func (q *txQueue) describe(f *nic.TxFrame, s *txSlot) error {
	if err := s.translate(q.space); err != nil {
		return err
	}
	p := &f.Packet
	if err := nic.ParseFrame(q.t.Worker.Copier, s.segs, 0, s.total, s.buf[:], p); err != nil {
		return err
	}
	m := &p.Meta
	m.GSOType, m.GSOSize, m.ECN, m.HashValid = splitter.GSONone, 0, false, false
	m.Csum, m.CsumStart, m.CsumOffset = splitter.CsumNone, 0, 0
	if s.csum || s.super {
		if start, offset, ok := splitter.CsumPlace(&m.Headers); ok { // otherwise there is no checksum to complete
			m.Csum, m.CsumStart, m.CsumOffset = splitter.CsumPartial, start, offset
		}
	}
	if s.super {
		if err := s.cut(p); err != nil {
			return err
		}
	}
	p.Prepare()
	return nil
}

// cut makes p a GSO packet, unless it is one segment; it returns errBadTSO if p is not as the TSO descriptor says. p's
// checksum field has the pseudo-header's sum without the length (gve_prep_tso), which cut replaces by the sum with the
// whole length.
func (s *txSlot) cut(p *wire.Packet) error {
	m := &p.Meta
	h := &m.Headers
	switch {
	case h.Class == splitter.UDP:
		m.GSOType = splitter.GSOUDPL4
	case h.Class == splitter.TCP && h.IPv6:
		m.GSOType = splitter.GSOTCPv6
	case h.Class == splitter.TCP:
		m.GSOType = splitter.GSOTCPv4
	default:
		return errBadTSO
	}
	d := &s.tso
	if !d.tso || d.mss < minMSS || d.mss > maxMSS || uint16(d.headerLen) != h.HdrLen || d.total != p.PayloadLen {
		return errBadTSO
	}
	splitter.FixIPv4(h, p.Header)
	splitter.FixPartial(h, p.Header, p.PayloadLen)
	if p.PayloadLen <= uint32(d.mss) { // one segment
		m.GSOType = splitter.GSONone
		return nil
	}
	m.GSOSize = d.mss
	m.ECN = h.Class == splitter.TCP && h.TCPFlags&splitter.CWR != 0
	return nil
}

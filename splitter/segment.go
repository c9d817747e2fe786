package splitter

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// MinGSOSize is the smallest segment size that a super-packet may have (Linux: TCP_MIN_GSO_SIZE).
const MinGSOSize = 8

// ErrBadGSO is the error for an invalid super-packet, and for a piece that Piece refuses.
var ErrBadGSO = errors.New("bad super-packet")

// A guest can cause any number of these errors, so they are allocated only once.
var (
	errGSOType   = fmt.Errorf("%w: type does not fit the headers", ErrBadGSO)
	errGSOSize   = fmt.Errorf("%w: segments too small", ErrBadGSO)
	errGSOLength = fmt.Errorf("%w: length does not fit the headers", ErrBadGSO)
	errGSOFlags  = fmt.Errorf("%w: SYN or RST", ErrBadGSO)
	errGSOCsum   = fmt.Errorf("%w: checksum neither partial nor good", ErrBadGSO)
	errPiece     = fmt.Errorf("%w: piece off the segment grid", ErrBadGSO)
)

// Segmenter cuts one super-packet into segments with a payload of MSS bytes, or into smaller super-packets of k times
// the MSS, in any order. The one with the payload's end may be shorter.
type Segmenter struct {
	hdr        []byte
	meta       Meta
	payloadLen uint32
	mss        uint32
	addresses  uint16 // sum of the pseudo-header without the length
	id         uint16 // identification of an IPv4 super-packet
}

// CheckGSO returns an error if a packet is no valid super-packet; nil for GSONone.
func CheckGSO(hdr []byte, m *Meta, payloadLen uint32) error {
	h := &m.Headers
	switch m.GSOType {
	case GSONone:
		return nil
	case GSOTCPv4, GSOTCPv6:
		if h.Class != TCP || h.IPv6 != (m.GSOType == GSOTCPv6) {
			return errGSOType
		}
		if h.TCPFlags&(SYN|RST) != 0 {
			return errGSOFlags
		}
	case GSOUDPL4:
		if h.Class != UDP {
			return errGSOType
		}
	default:
		return errGSOType
	}
	if m.GSOSize < MinGSOSize {
		return errGSOSize
	}
	if len(hdr) != int(h.HdrLen) || uint64(h.FrameLen) != uint64(h.HdrLen)+uint64(payloadLen) {
		return errGSOLength
	}
	switch m.Csum {
	case CsumGood:
	case CsumPartial:
		if !m.csumPlaced() {
			return errGSOCsum
		}
	default:
		return errGSOCsum
	}
	return nil
}

// Init starts on a packet: hdr has its headers (of a super-packet exactly HdrLen bytes), which the Segmenter keeps
// until the next Init and never writes, m is its Meta. The Csum of a super-packet must be CsumPartial, with the
// start and offset of CsumPlace, or CsumGood. A packet that is no super-packet (GSONone) is one segment.
func (s *Segmenter) Init(hdr []byte, m *Meta, payloadLen uint32) error {
	if err := CheckGSO(hdr, m, payloadLen); err != nil {
		return err
	}
	s.hdr, s.meta, s.payloadLen = hdr, *m, payloadLen
	if m.GSOType == GSONone {
		s.mss = max(payloadLen, 1)
		return nil
	}
	h := &s.meta.Headers
	s.mss = uint32(m.GSOSize)
	s.addresses = addressSum(h, hdr)
	if !h.IPv6 {
		s.id = binary.BigEndian.Uint16(hdr[h.L3Off+4:])
	}
	return nil
}

// MSS returns the payload length of a segment (only the last may be shorter); after a successful
// Init it is not 0.
func (s *Segmenter) MSS() uint32 { return s.mss }

// Segments returns the number of segments, at least 1.
func (s *Segmenter) Segments() uint32 {
	return max(1, uint32((uint64(s.payloadLen)+uint64(s.mss)-1)/uint64(s.mss)))
}

// Piece writes the headers of the piece that carries payload [off, off+n) to dst, which is at least as long as
// Init's hdr, and fills in m. off is a multiple of the MSS. n is a multiple too, or the piece extends to the payload's
// end; n is 0 only without payload. Piece returns an error for other off, n or dst.
// The checksum of a super-packet's piece is partial.
func (s *Segmenter) Piece(dst []byte, m *Meta, off, n uint32) error {
	if off > s.payloadLen || n > s.payloadLen-off || off%s.mss != 0 || n == 0 && s.payloadLen != 0 ||
		n%s.mss != 0 && n != s.payloadLen-off || len(dst) < len(s.hdr) {
		return errPiece
	}
	dst = dst[:copy(dst, s.hdr)]
	*m = s.meta
	if s.meta.GSOType == GSONone {
		return nil
	}
	h := &m.Headers
	h.FrameLen = uint32(h.HdrLen) + n
	l4 := dst[h.L4Off:]
	l4len := uint32(h.HdrLen-h.L4Off) + n
	if ip := dst[h.L3Off:]; h.IPv6 {
		binary.BigEndian.PutUint16(ip[4:], uint16(h.FrameLen-uint32(h.L3Off)-40))
	} else {
		binary.BigEndian.PutUint16(ip[2:], uint16(h.FrameLen-uint32(h.L3Off)))
		if !s.meta.FixedID {
			binary.BigEndian.PutUint16(ip[4:], s.id+uint16(off/s.mss))
		}
		FixIPv4(h, dst)
	}
	m.Csum, m.CsumStart = CsumPartial, h.L4Off
	if h.Class == TCP {
		h.Seq += off
		if off != 0 && !m.AccECN {
			h.TCPFlags &^= CWR
		}
		if off+n != s.payloadLen {
			h.TCPFlags &^= PSH | FIN
		}
		binary.BigEndian.PutUint32(l4[4:], h.Seq)
		l4[13] = h.TCPFlags
		m.CsumOffset = tcpCsumOff
	} else {
		binary.BigEndian.PutUint16(l4[4:], uint16(l4len))
		m.CsumOffset = udpCsumOff
	}
	binary.BigEndian.PutUint16(l4[m.CsumOffset:], fold(uint64(s.addresses)+uint64(l4len)))
	if n > s.mss {
		m.ECN = h.Class == TCP && h.TCPFlags&CWR != 0 && !m.AccECN
	} else {
		m.GSOType, m.GSOSize, m.ECN, m.FixedID, m.AccECN = GSONone, 0, false, false, false
	}
	return nil
}

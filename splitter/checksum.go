package splitter

import (
	"encoding/binary"
	"math/bits"
)

const (
	ipv4CsumOff = 10
	tcpCsumOff  = 16
	udpCsumOff  = 6
)

// Sum returns the ones' complement sum of initial and the big-endian 16-bit words of b (RFC 1071), folded, not
// inverted. To an odd number of bytes it appends a zero.
func Sum(b []byte, initial uint16) uint16 {
	acc := uint64(initial)
	for len(b) >= 4 {
		acc += uint64(binary.BigEndian.Uint32(b))
		b = b[4:]
	}
	if len(b) >= 2 {
		acc += uint64(binary.BigEndian.Uint16(b))
		b = b[2:]
	}
	if len(b) > 0 {
		acc += uint64(b[0]) << 8
	}
	return fold(acc)
}

func fold(acc uint64) uint16 {
	acc = acc>>32 + acc&0xffffffff
	acc = acc>>16 + acc&0xffff
	acc = acc>>16 + acc&0xffff
	acc = acc>>16 + acc&0xffff
	return uint16(acc)
}

// Add returns the ones' complement sum of two folded sums.
func Add(a, b uint16) uint16 {
	s, carry := bits.Add32(uint32(a)<<16, uint32(b)<<16, 0)
	return uint16(s>>16) + uint16(carry)
}

// SumAt returns the sum of a part that begins at offset off of the data, converted so that Add can add it to the
// sums that SumAt returns for other parts.
func SumAt(sum uint16, off uint32) uint16 {
	if off&1 != 0 {
		return bits.ReverseBytes16(sum)
	}
	return sum
}

// addressSum sums the addresses and the protocol of the pseudo-header.
func addressSum(h *Headers, hdr []byte) uint16 {
	ip := hdr[h.L3Off:]
	if h.IPv6 {
		return Sum(ip[8:40], uint16(h.Proto))
	}
	return Sum(ip[12:20], uint16(h.Proto))
}

// PseudoSum returns the sum of the pseudo-header (RFC 9293, 3.1; RFC 768; RFC 8200, 8.1) of a TCP or UDP frame whose
// layer 4 header and payload have l4len bytes. hdr, here and in FixPartial, FixL4 and VerifyL4, has at least the
// first h.HdrLen bytes of the frame.
func PseudoSum(h *Headers, hdr []byte, l4len uint32) uint16 {
	return fold(uint64(addressSum(h, hdr)) + uint64(l4len))
}

// FixIPv4 writes the IPv4 header checksum; it does nothing to frames that are not IPv4, and to Malformed ones.
func FixIPv4(h *Headers, hdr []byte) {
	if h.IPv6 || h.L4Off == 0 {
		return
	}
	ip := hdr[h.L3Off:h.L4Off]
	ip[ipv4CsumOff], ip[ipv4CsumOff+1] = 0, 0
	binary.BigEndian.PutUint16(ip[ipv4CsumOff:], ^Sum(ip, 0))
}

// VerifyIPv4 reports whether hdr has the whole IPv4 header, and its checksum is right. It returns true for frames that
// are not IPv4, and for Malformed ones.
func VerifyIPv4(h *Headers, hdr []byte) bool {
	return h.IPv6 || h.L4Off == 0 || int(h.L4Off) <= len(hdr) && Sum(hdr[h.L3Off:h.L4Off], 0) == 0xffff
}

// CsumPlace returns the CsumStart and CsumOffset of a TCP or UDP frame with CsumPartial. ok is false for frames of
// other classes.
func CsumPlace(h *Headers) (start, offset uint16, ok bool) {
	switch h.Class {
	case TCP:
		return h.L4Off, tcpCsumOff, true
	case UDP:
		return h.L4Off, udpCsumOff, true
	}
	return 0, 0, false
}

// FixPartial writes the pseudo-header's sum into the checksum field of a TCP or UDP frame, as
// CsumPartial requires. It does nothing to other frames.
func FixPartial(h *Headers, hdr []byte, payloadLen uint32) {
	if start, offset, ok := CsumPlace(h); ok {
		l4len := uint32(h.HdrLen-h.L4Off) + payloadLen
		binary.BigEndian.PutUint16(hdr[start+offset:], PseudoSum(h, hdr, l4len))
	}
}

// FixL4 writes the full layer 4 checksum of a TCP or UDP frame whose payload has payloadLen bytes and the sum
// payloadSum. It does nothing to other frames.
func FixL4(h *Headers, hdr []byte, payloadLen uint32, payloadSum uint16) {
	start, offset, ok := CsumPlace(h)
	if !ok {
		return
	}
	FixPartial(h, hdr, payloadLen)
	PutCsum(hdr[start+offset:], Sum(hdr[start:h.HdrLen], payloadSum), h.Class == UDP)
}

// PutCsum inverts a sum and writes it to field as a checksum. If udp is true, it writes 0xffff in place of 0, which
// would mean that there is no checksum (RFC 768).
func PutCsum(field []byte, sum uint16, udp bool) {
	if sum = ^sum; sum == 0 && udp {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(field, sum)
}

// VerifyL4 returns CsumGood or CsumBad for the layer 4 checksum of a TCP or UDP frame, and CsumNone for a frame that
// it cannot check: another class, UDP without a checksum, or UDP whose length field is not the length of the datagram.
func VerifyL4(h *Headers, hdr []byte, payloadLen uint32, payloadSum uint16) Csum {
	l4 := hdr[h.L4Off:h.HdrLen]
	l4len := uint32(len(l4)) + payloadLen
	switch h.Class {
	case TCP:
	case UDP:
		if binary.BigEndian.Uint16(l4[udpCsumOff:]) == 0 || uint32(binary.BigEndian.Uint16(l4[4:])) != l4len {
			return CsumNone
		}
	default:
		return CsumNone
	}
	if Add(Sum(l4, PseudoSum(h, hdr, l4len)), payloadSum) != 0xffff {
		return CsumBad
	}
	return CsumGood
}

// Complete writes the full checksum of a TCP or UDP frame with CsumPartial to hdr, and makes m CsumGood. payloadSum is
// the sum of the payload.
func (m *Meta) Complete(hdr []byte, payloadSum uint16) {
	FixL4(&m.Headers, hdr, m.Headers.FrameLen-uint32(m.Headers.HdrLen), payloadSum)
	m.Csum, m.CsumStart, m.CsumOffset = CsumGood, 0, 0
}

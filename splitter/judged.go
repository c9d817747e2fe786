package splitter

// Numbers of bytes that the gateway's filter reads after the link header of ARP (RFC 826) and after the IP headers of
// ICMPv6 (RFC 4861, 4.3).
const (
	judgedARP    = 28
	judgedICMPv6 = 24
	protoICMPv6  = 58 // IP protocol number
)

// JudgedLen returns how many bytes at the start of a frame decide what happens to it. Verifying a checksum reads
// more bytes, and so does handling a control frame. The readers are:
//
//   - vnic's switch: the link header (addresses, EtherType), for the address table and to find control
//     frames;
//   - Parse: the headers up to HdrLen, the ports of SCTP, and the SPI of ESP and AH, which, with lengths, are
//     the input of steering, RSS, rules, flow counters, header split and GSO;
//   - the gateway's filter.admits: also the body of ARP and the start of ICMPv6.
//
// In private copies wire.Identity reads neighbor discovery messages and IPv6 fragments beyond JudgedLen, and the
// gateway reads DHCP messages and the type of ICMP. Whoever adds a reader of more bytes in memory that may still
// change must extend JudgedLen. For a Malformed frame the result is its whole length.
func (h *Headers) JudgedLen() uint32 {
	n := uint32(h.HdrLen)
	switch {
	case h.Class == Malformed:
		n = h.FrameLen
	case h.Class == NotIP && h.EtherType == EtherTypeARP:
		n += judgedARP
	case h.Class == OtherIP && h.Proto == protoICMPv6:
		n += judgedICMPv6
	case h.Class == OtherIP:
		n += selectorsLen(h.Proto)
	}
	return min(n, h.FrameLen)
}

// CsumAllowed reports whether completing the CsumPartial of a frame of frameLen bytes changes, of the first
// JudgedLen bytes, at most the checksum of TCP or UDP. For TCP and UDP, start and offset must be as in CsumPlace.
// Otherwise start and field must lie after JudgedLen, and the field inside the frame. Fragments and Malformed
// frames may have no partial checksum.
func (m *Meta) CsumAllowed(frameLen uint32) bool {
	return m.csumPlaced() || m.csumBehindJudged(frameLen)
}

func (m *Meta) csumPlaced() bool {
	start, offset, ok := CsumPlace(&m.Headers)
	return ok && m.CsumStart == start && m.CsumOffset == offset
}

func (m *Meta) csumBehindJudged(frameLen uint32) bool {
	h := &m.Headers
	if h.Class != NotIP && h.Class != OtherIP {
		return false
	}
	start := uint32(m.CsumStart)
	return start >= h.JudgedLen() && start+uint32(m.CsumOffset)+2 <= frameLen
}

package splitter

// Bytes that the gateway's filter reads after the link header of ARP (RFC 826) and after the IP headers of
// ICMPv6 (RFC 4861, 4.3).
const (
	judgedARP    = 28
	judgedICMPv6 = 24
	protoICMPv6  = 58
)

// JudgedLen returns how many bytes at the start of a frame decide what happens to it, except for a checksum,
// and for control frames. The readers are:
//
//   - vnic's switch: the link header (addresses, EtherType), for the address table and to find control
//     frames;
//   - Parse: the headers up to HdrLen, the only input of steering, RSS, rules, flow counters, header
//     split and GSO; also the ports of SCTP, and the SPI of ESP and AH;
//   - the gateway's filter: also the body of ARP and the start of ICMPv6.
//
// wire.Identity also reads neighbor discovery messages beyond JudgedLen, in a private copy with a complete
// checksum. Whoever adds another reader of more bytes must extend JudgedLen. For a Malformed frame the result
// is its whole length.
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

// CsumAllowed reports whether the CsumPartial of a frame of frameLen bytes may be completed without changing
// a byte of JudgedLen. For TCP and UDP, start and offset must be as in CsumPlace. Otherwise start and field
// must lie after JudgedLen, and the field inside the frame. Fragments and Malformed frames may have no
// partial checksum.
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

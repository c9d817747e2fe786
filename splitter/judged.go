package splitter

// What the gateway's filter reads behind the link header of ARP (RFC 826) and behind the IP headers
// of ICMPv6: type and target address of a neighbor solicitation (RFC 4861, 4.3).
const (
	judgedARP    = 28
	judgedICMPv6 = 24
	protoICMPv6  = 58
)

// JudgedLen says how many bytes at the start of a frame decide what becomes of it: no code of ours
// reads more of a frame before it is delivered. The readers are:
//
//   - the switch: the link header (addresses, EtherType), for the address table and to find control
//     frames;
//   - Parse: the headers up to HdrLen, from which steering, RSS, rules, meters, header split and
//     GSO take all they know; of SCTP the ports, of ESP and AH the SPI;
//   - the gateway's filter: also the body of ARP and the start of ICMPv6.
//
// Where a wire judges source addresses (wire.Identity), it reads more of neighbor discovery, behind its
// checksum: what it reads it has copied, after it has completed a partial checksum.
//
// A capture copies headers and payload to a file and judges nothing. A reader of more bytes has to
// be added here. Of a Malformed frame nothing is known, so all of it counts.
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

// CsumAllowed says whether the CsumPartial of a frame of frameLen bytes is one that may be
// completed: doing so changes no byte that somebody has judged, or will. Of TCP and UDP, start and
// offset are CsumPlace's. Of other IP protocols and of what is not IP, start and field lie behind
// JudgedLen, and the field lies in the frame: there it belongs to something that Parse does not
// follow (PPPoE, MPLS, a third VLAN tag, a tunnel, a source route that is not at its end).
// Fragments have no partial checksum, and Malformed frames may have none.
func (m *Meta) CsumAllowed(frameLen uint32) bool {
	return m.csumPlaced() || m.csumBehindJudged(frameLen)
}

// csumPlaced says whether start and offset are where TCP and UDP have their checksum.
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

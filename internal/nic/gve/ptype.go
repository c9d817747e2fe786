package gve

import "vnic.dev/vnic/splitter"

// Types of a packet's layers (gve_adminq.h, enum gve_l3_type and gve_l4_type).
const (
	l3Other = 1 // GVE_L3_TYPE_OTHER
	l3IPv4  = 2 // GVE_L3_TYPE_IPV4
	l3IPv6  = 3 // GVE_L3_TYPE_IPV6

	l4Other = 1 // GVE_L4_TYPE_OTHER
	l4TCP   = 2 // GVE_L4_TYPE_TCP
	l4UDP   = 3 // GVE_L4_TYPE_UDP
	l4ICMP  = 4 // GVE_L4_TYPE_ICMP
	l4SCTP  = 5 // GVE_L4_TYPE_SCTP
)

// ptypes is how many packet types there may be: packet_type of a completion has 10 bits. The device chooses their
// numbers: l3<<4 | l4; 0 is unknown.
const ptypes = 1 << 10

func ptypeOf(h *splitter.Headers) uint16 {
	l3, l4 := uint16(l3IPv4), uint16(l4Other)
	if h.IPv6 {
		l3 = l3IPv6
	}
	switch h.Class {
	case splitter.TCP:
		l4 = l4TCP
	case splitter.UDP:
		l4 = l4UDP
	case splitter.OtherIP:
		switch {
		case !h.IPv6 && h.Proto == 1, h.IPv6 && h.Proto == 58: // ICMP, ICMPv6 (IANA)
			l4 = l4ICMP
		case h.Proto == 132:
			l4 = l4SCTP
		}
	case splitter.Fragment:
	case splitter.NotIP:
		l3 = l3Other
	default:
		return 0
	}
	return l3<<4 | l4
}

// ptypeMap returns the reply of GET_PTYPE_MAP: two bytes {l3, l4} for each of the ptypes numbers, zeros if the number
// is not in use.
func ptypeMap() []byte {
	b := make([]byte, 2*ptypes)
	for l3 := l3Other; l3 <= l3IPv6; l3++ {
		for l4 := l4Other; l4 <= l4SCTP; l4++ {
			n := l3<<4 | l4
			b[2*n], b[2*n+1] = byte(l3), byte(l4)
		}
	}
	return b
}

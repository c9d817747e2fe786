package gateway

import (
	"encoding/binary"
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip/header"

	"vnic.dev/vnic/splitter"
)

// filter decides by a frame's headers, mainly the addresses, whether netstack may see it. It is immutable.
type filter struct {
	prefix4, prefix6 netip.Prefix // invalid: none
	local6           netip.Addr   // the gateway's link-local address
	nat              bool
}

const (
	portDNS        = 53
	portDHCPServer = 67
	portDHCPClient = 68
)

const (
	protoICMP        = 1
	protoICMPv6      = 58
	ndRouterSolicit  = 133 // RFC 4861, 4.1
	ndNeighborAdvert = 136 // RFC 4861, 4.4
	ndSolicit        = 135 // RFC 4861, 4.3
)

var broadcast4 = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// admits reports whether netstack may get a frame, by its headers. b is the start of the frame; admits refuses a frame
// if b lacks bytes that it needs.
func (f *filter) admits(h *splitter.Headers, b []byte) bool {
	if h.Tagged() || int(h.L3Off) > len(b) {
		return false
	}
	switch {
	case h.Class == splitter.Malformed:
		return false
	case h.Class == splitter.NotIP:
		return h.EtherType == splitter.EtherTypeARP && f.arp(b[h.L3Off:])
	case h.IPv6:
		return f.ipv6(h, b)
	}
	return splitter.VerifyIPv4(h, b) && f.ipv4(h)
}

func (f *filter) arp(b []byte) bool {
	if len(b) < 28 || !f.prefix4.IsValid() || [6]byte(b[0:6]) != [6]byte{0, 1, 8, 0, 6, 4} {
		return false
	}
	from, to := netip.AddrFrom4([4]byte(b[14:18])), netip.AddrFrom4([4]byte(b[24:28]))
	switch binary.BigEndian.Uint16(b[6:8]) {
	case 1: // a probe has no sender's address (RFC 5227)
		return to == f.prefix4.Addr() && (f.neighbor4(from) || from.IsUnspecified())
	case 2:
		return f.neighbor4(from)
	}
	return false
}

func (f *filter) neighbor4(a netip.Addr) bool {
	return f.prefix4.Contains(a) && a != f.prefix4.Addr() && a != lastOf(f.prefix4) &&
		(a != f.prefix4.Masked().Addr() || f.prefix4.Bits() >= 31)
}

func (f *filter) ipv4(h *splitter.Headers) bool {
	if !f.prefix4.IsValid() {
		return false
	}
	src, dst := netip.AddrFrom4([4]byte(h.Flow.Src[:4])), netip.AddrFrom4([4]byte(h.Flow.Dst[:4]))
	toGateway := dst == f.prefix4.Addr()
	if h.Class == splitter.UDP && h.Flow.DstPort == portDHCPServer &&
		(toGateway || dst == broadcast4 || dst == lastOf(f.prefix4)) {
		return f.neighbor4(src) || src.IsUnspecified()
	}
	switch {
	case !f.neighbor4(src):
		return false
	case toGateway:
		return true
	}
	return f.outside(h, dst) && !f.prefix4.Contains(dst) && h.Flow.Dst[0] != 0 && dst != broadcast4
}

// outside reports whether NAT may carry a packet, by its protocol and the kind of dst. The callers check that dst is
// beyond the link; Policy is checked later.
func (f *filter) outside(h *splitter.Headers, dst netip.Addr) bool {
	icmp := uint8(protoICMP)
	if h.IPv6 {
		icmp = protoICMPv6
	}
	return f.nat && (h.Proto == splitter.ProtoTCP || h.Proto == splitter.ProtoUDP || h.Proto == icmp) &&
		!dst.IsMulticast() && !dst.IsLoopback() && !dst.IsUnspecified() && !dst.Is4In6()
}

func (f *filter) ipv6(h *splitter.Headers, b []byte) bool {
	if !f.prefix6.IsValid() {
		return false
	}
	src, dst := netip.AddrFrom16(h.Flow.Src), netip.AddrFrom16(h.Flow.Dst)
	toGateway := dst == f.prefix6.Addr() || dst == f.local6
	neighbor := (f.prefix6.Contains(src) || src.IsLinkLocalUnicast()) && src != f.prefix6.Addr() && src != f.local6
	if h.Proto == protoICMPv6 && h.Class != splitter.Fragment {
		off := int(h.L4Off)
		switch {
		case len(b) < off+4:
			return false
		case b[off] == ndSolicit: // from a guest without an address too
			if len(b) < off+24 || !neighbor && !src.IsUnspecified() {
				return false
			}
			target := netip.AddrFrom16([16]byte(b[off+8 : off+24]))
			return target == f.prefix6.Addr() || target == f.local6
		case b[off] == ndNeighborAdvert:
			return neighbor
		case b[off] == ndRouterSolicit:
			return neighbor || src.IsUnspecified()
		}
	}
	switch {
	case !neighbor:
		return false
	case toGateway:
		return true
	}
	return f.outside(h, dst) && !f.prefix6.Contains(dst) && !src.IsLinkLocalUnicast()
}

// Types of ICMP that guests may send, beside neighbor discovery. ICMP errors are refused: netstack would believe a
// guest's error about another guest's connection.
const (
	echo4 = 8
	echo6 = 128
)

// allowedICMP reports whether a packet, b from its network header on, is not ICMP, ICMP of a type that guests
// may send, or a later fragment. Of ICMP a first fragment must be an echo request. An IPv6 fragment with more extension
// headers may be ICMP, so IPv6 fragments of other protocols than TCP, UDP and ICMPv6 are refused.
func allowedICMP(h *splitter.Headers, b []byte) bool {
	off, first := int(h.L4Off-h.L3Off), true
	switch {
	case h.Class == splitter.NotIP:
		return true
	case h.Class == splitter.Fragment && h.IPv6:
		first = off >= fragmentHeader && off <= len(b) && binary.BigEndian.Uint16(b[off-fragmentHeader+2:])>>3 == 0
		if h.Proto != protoICMPv6 {
			return h.Proto == splitter.ProtoUDP || h.Proto == splitter.ProtoTCP
		}
	case h.Class == splitter.Fragment:
		first = header.IPv4(b).FragmentOffset() == 0
	}
	if h.Class != splitter.Fragment && h.Class != splitter.OtherIP || !h.IPv6 && h.Proto != protoICMP ||
		h.IPv6 && h.Proto != protoICMPv6 || !first {
		return true
	}
	if off >= len(b) {
		return false
	}
	switch t := b[off]; {
	case !h.IPv6:
		return t == echo4
	case h.Class == splitter.Fragment:
		return t == echo6
	default:
		return t == echo6 || t == ndSolicit || t == ndNeighborAdvert || t == ndRouterSolicit
	}
}

const fragmentHeader = 8 // bytes, of IPv6 (RFC 8200, 4.5)

// lastOf returns the broadcast address of an IPv4 prefix; the zero Addr for prefixes of one or two addresses.
func lastOf(p netip.Prefix) netip.Addr {
	if p.Bits() >= 31 {
		return netip.Addr{}
	}
	b := p.Masked().Addr().As4()
	n := binary.BigEndian.Uint32(b[:]) | uint32(1)<<(32-p.Bits()) - 1
	binary.BigEndian.PutUint32(b[:], n)
	return netip.AddrFrom4(b)
}

package gateway

import (
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/header/parse"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"vnic.dev/vnic/internal/ether"
	"vnic.dev/vnic/splitter"
)

// pingBeyond reports whether a frame that the filter refused is a ping from another address of the gateway's network
// to a global unicast address outside it. b is the start of the frame, as far as port.wants has read it. For IPv4 b
// lacks the ICMP type: any ICMP message counts, and Deliver then drops all but echo requests (allowedICMP).
func (f *filter) pingBeyond(h *splitter.Headers, b []byte) bool {
	if h.Tagged() || h.Class != splitter.OtherIP {
		return false
	}
	var src, dst netip.Addr
	local := f.prefix4
	switch {
	case h.IPv6 && h.Proto == protoICMPv6 && int(h.L4Off) < len(b) && b[h.L4Off] == echo6:
		src, dst, local = netip.AddrFrom16(h.Flow.Src), netip.AddrFrom16(h.Flow.Dst), f.prefix6
	case !h.IPv6 && h.Proto == protoICMP && splitter.VerifyIPv4(h, b):
		src, dst = netip.AddrFrom4([4]byte(h.Flow.Src[:4])), netip.AddrFrom4([4]byte(h.Flow.Dst[:4]))
	default:
		return false
	}
	return local.IsValid() && local.Contains(src) && src != local.Addr() && !local.Contains(dst) &&
		dst.IsGlobalUnicast()
}

// unreachable sends an ICMP error (RFC 1812, 5.2.7.1; RFC 4443, 3.1) for a ping that pingBeyond has found, if
// allowsError allows: "prohibited" with NAT; "network unreachable" (IPv4) or "no route" (IPv6) without.
func (g *Gateway) unreachable(proto tcpip.NetworkProtocolNumber, pkt *stack.PacketBuffer) {
	if !g.allowsError(g.port.sender()) {
		return
	}
	pkt.NICID, pkt.NetworkProtocolNumber = ether.NIC, proto
	if proto == header.IPv4ProtocolNumber {
		if !parse.IPv4(pkt) || !parse.ICMPv4(pkt) {
			return
		}
	} else if _, _, _, _, ok := parse.IPv6(pkt); !ok || !parse.ICMPv6(pkt) {
		return
	}
	why4, why6 := stack.RejectIPv4WithICMPAdminProhibited, stack.RejectIPv6WithICMPAdminProhibited
	if !g.o.NAT {
		why4, why6 = stack.RejectIPv4WithICMPNetUnreachable, stack.RejectIPv6WithICMPNoRoute
	}
	g.reject(pkt, why4, why6, false)
}

// reject answers a packet with an ICMP error: why4 for IPv4, why6 for IPv6.
func (g *Gateway) reject(pkt *stack.PacketBuffer, why4 stack.RejectIPv4WithICMPType,
	why6 stack.RejectIPv6WithICMPType, input bool) {
	switch p := g.ns.NetworkProtocolInstance(pkt.NetworkProtocolNumber).(type) {
	case stack.RejectIPv4WithHandler:
		p.SendRejectionError(pkt, why4, input)
	case stack.RejectIPv6WithHandler:
		p.SendRejectionError(pkt, why6, input)
	}
}

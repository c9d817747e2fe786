package gateway

import (
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header/parse"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"vnic.dev/vnic/internal/ether"
	"vnic.dev/vnic/splitter"
)

// pingBeyond says whether a frame, which admits has refused, is ICMP for an address that is not on the link. Such an
// address may be there, and NAT lead to it; but a ping does not, so the guest is told. What kind of ICMP it is, IPv4's
// part of b does not reach to: netstack looks, and answers no errors. b is what is judged of the frame.
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

// unreachable tells the sender of a ping that it leads nowhere (RFC 792; RFC 4443, 3.1): it is prohibited where other
// packets get to elsewhere, and without NAT there is no route. The packet is as it came, from its network header on.
func (g *Gateway) unreachable(proto tcpip.NetworkProtocolNumber, pkt *stack.PacketBuffer) {
	if !g.allowsError(g.port.sender()) {
		return
	}
	pkt.NICID, pkt.NetworkProtocolNumber = ether.NIC, proto
	switch p := g.ns.NetworkProtocolInstance(proto).(type) {
	case stack.RejectIPv4WithHandler:
		if !parse.IPv4(pkt) || !parse.ICMPv4(pkt) {
			return
		}
		why := stack.RejectIPv4WithICMPAdminProhibited
		if !g.o.NAT {
			why = stack.RejectIPv4WithICMPNetUnreachable
		}
		p.SendRejectionError(pkt, why, false)
	case stack.RejectIPv6WithHandler:
		if _, _, _, _, ok := parse.IPv6(pkt); !ok || !parse.ICMPv6(pkt) {
			return
		}
		why := stack.RejectIPv6WithICMPAdminProhibited
		if !g.o.NAT {
			why = stack.RejectIPv6WithICMPNoRoute
		}
		p.SendRejectionError(pkt, why, false)
	}
}

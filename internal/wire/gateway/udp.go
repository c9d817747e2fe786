package gateway

import (
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"vnic.dev/vnic/splitter"
)

// datagram handles a guest's UDP datagram that is not for a service of the gateway; false: netstack answers "port
// unreachable".
func (g *Gateway) datagram(id stack.TransportEndpointID, pkt *stack.PacketBuffer) bool {
	if g.looped(id) {
		return true
	}
	guest, to := addrPort(id.RemoteAddress, id.RemotePort), addrPort(id.LocalAddress, id.LocalPort)
	if !goodSum(id, pkt) || g.answerForward(guest, to, pkt) {
		return true
	}
	if !g.o.NAT {
		return !g.allowsError(g.port.sender())
	}
	g.carry(flowKey{splitter.ProtoUDP, guest, to.Addr()}, id, to.Port(), pkt, pkt.Data().AsRange().ToSlice())
	return true
}

func goodSum(id stack.TransportEndpointID, pkt *stack.PacketBuffer) bool {
	h := header.UDP(pkt.TransportHeader().Slice())
	length, sum := header.UDPValid(h, pkt.Data().Checksum, uint16(pkt.Data().Size()), pkt.NetworkProtocolNumber,
		id.RemoteAddress, id.LocalAddress, pkt.RXChecksumValidated)
	return length && sum
}

// carry sends a guest's datagram to a server's port (0: an echo) by its flow, which it may begin. Unless the server is
// the gateway, it takes one hop off and keeps DF. Instead it answers with an ICMP error if no hop is left (expire) or
// Policy refuses the port (prohibit).
func (g *Gateway) carry(key flowKey, id stack.TransportEndpointID, port uint16, pkt *stack.PacketBuffer, data []byte) {
	from := g.port.sender()
	d := outgoing{port: port, data: data}
	if host := g.hostSide(netip.AddrPortFrom(key.server, port)); host[0].Addr() == key.server {
		hops := uint8(0)
		if hops, d.df = g.hopsOf(pkt); hops <= 1 {
			g.expire(key, pkt)
			return
		}
		d.ttl = hops - 1
	}
	f := g.flows.find(key)
	known := false
	if f != nil {
		d.to, known = f.permitFor(port)
	}
	if !known {
		id.LocalPort = port
		to := g.permits(from, id)
		if to == nil {
			g.prohibit(pkt)
			return
		}
		d.to = to[0]
	}
	if f == nil {
		if f = g.flowOf(key, from, d.to.to.Addr()); f == nil {
			return
		}
	}
	f.touch()
	f.asked.Add(1)
	f.send(d)
}

// hopsOf returns a packet's time to live or hop limit. df is IPv4's DF, or for IPv6 whether it came in one frame.
func (g *Gateway) hopsOf(pkt *stack.PacketBuffer) (hops uint8, df bool) {
	if b := pkt.NetworkHeader().Slice(); pkt.NetworkProtocolNumber == header.IPv4ProtocolNumber {
		ip := header.IPv4(b)
		return ip.TTL(), ip.Flags()&header.IPv4FlagDontFragment != 0
	} else {
		return header.IPv6(b).HopLimit(), !g.port.ep.fragment.Load()
	}
}

// expire answers a packet without hops left with an ICMP error, if allowsError allows (RFC 1812, 5.3.1; RFC 4443, 3.3).
func (g *Gateway) expire(key flowKey, pkt *stack.PacketBuffer) {
	t := trouble{typ: uint8(header.ICMPv4TimeExceeded)}
	if key.server.Is6() {
		t.typ = uint8(header.ICMPv6TimeExceeded)
	}
	v := stack.PayloadSince(pkt.TransportHeader())
	defer v.Release()
	g.sendError(g.port.sender(), t, g.ownAddr(key.server), key, v.AsSlice())
}

// prohibit answers a packet that Policy refuses with an ICMP error, if allowsError allows (RFC 1812, 5.2.7.1; RFC 4443,
// 3.1).
func (g *Gateway) prohibit(pkt *stack.PacketBuffer) {
	if g.allowsError(g.port.sender()) {
		g.reject(pkt, stack.RejectIPv4WithICMPAdminProhibited, stack.RejectIPv6WithICMPAdminProhibited, true)
	}
}

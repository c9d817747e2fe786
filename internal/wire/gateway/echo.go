package gateway

import (
	"context"
	"encoding/binary"
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// echo handles a guest's echo request (RFC 792; RFC 4443, 4.1) to an address that is not the gateway's own: it calls
// carry and returns true. It returns false without NAT, and for other packets.
func (g *Gateway) echo(id stack.TransportEndpointID, pkt *stack.PacketBuffer) bool {
	v := stack.PayloadSince(pkt.TransportHeader())
	defer v.Release()
	guest, server := addrPort(id.RemoteAddress, 0).Addr(), addrPort(id.LocalAddress, 0).Addr()
	proto, request := uint8(protoICMP), uint8(header.ICMPv4Echo)
	if server.Is6() {
		proto, request = protoICMPv6, uint8(header.ICMPv6EchoRequest)
	}
	b := v.AsSlice()
	if len(b) < header.ICMPv4MinimumSize || b[0] != request || !g.o.NAT || g.isOwn(server) {
		return false
	}
	key := flowKey{proto, netip.AddrPortFrom(guest, binary.BigEndian.Uint16(b[4:])), server}
	g.carry(key, id, 0, pkt, append([]byte(nil), b...))
	return true
}

func (g *Gateway) isOwn(a netip.Addr) bool {
	return a == g.o.Prefix4.Addr() || a == g.o.Prefix6.Addr() || a == g.port.filter.local6
}

// answerEcho sends b, if it is an echo reply, to the guest, with the identifier of the guest's request: the host's
// ping socket has sent its own identifier.
func (f *flow) answerEcho(ctx context.Context, b []byte) {
	g, v6 := f.gateway, f.key.server.Is6()
	if len(b) < header.ICMPv4MinimumSize || !v6 && b[0] != uint8(header.ICMPv4EchoReply) ||
		v6 && b[0] != uint8(header.ICMPv6EchoReply) {
		return
	}
	binary.BigEndian.PutUint16(b[2:], 0)
	binary.BigEndian.PutUint16(b[4:], f.key.guest.Port())
	if !g.awaitGuest(ctx, f.back, len(b)) {
		g.count.udpLost.Add(1)
		return
	}
	sendICMP(f.back, b)
}

package gateway

import (
	"context"
	"math"
	"net/netip"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"vnic.dev/vnic/internal/ether"
	"vnic.dev/vnic/internal/wire"
)

// routeTo returns the route to a guest with the source address from, or nil if there is none. The caller releases it.
func (g *Gateway) routeTo(guest, from netip.Addr) *stack.Route {
	r, err := g.ns.FindRoute(ether.NIC, ether.Address(from), ether.Address(guest), ether.Protocol(guest), false)
	if err != nil {
		return nil
	}
	return r
}

// sendDatagram waits in awaitGuest and then sends a UDP datagram to a guest, or counts it as lost.
func (g *Gateway) sendDatagram(ctx context.Context, r *stack.Route, from, to uint16, b []byte) {
	if !g.awaitGuest(ctx, r, header.UDPMinimumSize+len(b)) {
		g.count.udpLost.Add(1)
		return
	}
	writeDatagram(r, from, to, b)
}

func writeDatagram(r *stack.Route, from, to uint16, b []byte) {
	n := header.UDPMinimumSize + len(b)
	pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{
		ReserveHeaderBytes: int(r.MaxHeaderLength()) + header.UDPMinimumSize, Payload: buffer.MakeWithData(b)})
	defer pkt.DecRef()
	pkt.TransportProtocolNumber = header.UDPProtocolNumber
	h := header.UDP(pkt.TransportHeader().Push(header.UDPMinimumSize))
	h.Encode(&header.UDPFields{SrcPort: from, DstPort: to, Length: uint16(n)})
	sum := checksum.Combine(r.PseudoHeaderChecksum(header.UDPProtocolNumber, uint16(n)), checksum.Checksum(b, 0))
	if sum = ^h.CalculateChecksum(sum); sum == 0 { // 0 means no checksum (RFC 768)
		sum = math.MaxUint16
	}
	h.SetChecksum(sum)
	_ = r.WritePacket(stack.NetworkHeaderParams{Protocol: header.UDPProtocolNumber, TTL: r.DefaultTTL()}, pkt)
}

func checksumOf(b []byte) uint16 { return checksum.Checksum(b, 0) }

// awaitGuest waits until netstack has found the guest's MAC, and then for room for a packet with n bytes from the
// transport header on (outbox.await). false: no MAC was found, there was no room in time, or ctx ended.
func (g *Gateway) awaitGuest(ctx context.Context, r *stack.Route, n int) bool {
	found := make(chan stack.ResolvedFieldsResult, 1)
	err := r.ResolvedFields(func(res stack.ResolvedFieldsResult) { found <- res })
	if _, waits := err.(*tcpip.ErrWouldBlock); err != nil && !waits {
		return false
	}
	var res stack.ResolvedFieldsResult
	select {
	case res = <-found: // netstack gives up after some tries
	case <-ctx.Done():
		return false
	}
	if res.Err != nil {
		return false
	}
	var mac wire.MAC
	copy(mac[:], res.RouteInfo.RemoteLinkAddress)
	return g.out.await(ctx, mac, 1+n/(int(r.MTU())-header.IPv6MinimumSize), n)
}

package gateway

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"time"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"vnic.dev/vnic/internal/dhcp4"
	"vnic.dev/vnic/internal/ether"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/splitter"
)

// startDHCP serves DHCP, if there is an IPv4 network.
func (g *Gateway) startDHCP() error {
	if !g.o.Prefix4.IsValid() {
		return nil
	}
	addr := tcpip.FullAddress{NIC: ether.NIC, Port: portDHCPServer}
	if err := g.serveDatagrams(addr, ipv4.ProtocolNumber, g.dhcp); err != nil {
		return fmt.Errorf("dhcp: %w", err)
	}
	return nil
}

func (g *Gateway) dhcp(_ *datagramServer, d datagram) {
	var reply []byte
	var to netip.AddrPort
	if g.mayAsk(d.data, d.from.Addr()) {
		reply, to = g.answerDHCP(d.data, time.Now())
	}
	if reply == nil {
		g.count.badDHCP.Add(1)
	}
	if len(reply) == 0 {
		return
	}
	mac, _ := clientOf(d.data)
	g.sendLease(mac, to, reply)
}

// sendLease sends an answer to its client's MAC, also if the IP address is the broadcast one
// because the client has no address yet (RFC 2131, 4.1): broadcast frames would share one queue of
// answers, which a flood of questions fills, and every guest would get them. sendLease does not use
// the endpoint of the DHCP service, which is bound to no address: netstack could choose as the source
// any address for which it answers, with NAT all addresses.
func (g *Gateway) sendLease(mac wire.MAC, to netip.AddrPort, b []byte) {
	const headers = header.EthernetMinimumSize + header.IPv4MinimumSize + header.UDPMinimumSize
	pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{ReserveHeaderBytes: headers, Payload: buffer.MakeWithData(b)})
	defer pkt.DecRef()
	pkt.TransportProtocolNumber, pkt.NetworkProtocolNumber = header.UDPProtocolNumber, header.IPv4ProtocolNumber
	src, dst := ether.Address(g.o.Prefix4.Addr()), ether.Address(to.Addr())
	n := header.UDPMinimumSize + len(b)
	udp := header.UDP(pkt.TransportHeader().Push(header.UDPMinimumSize))
	udp.Encode(&header.UDPFields{SrcPort: portDHCPServer, DstPort: to.Port(), Length: uint16(n)})
	sum := header.PseudoHeaderChecksum(header.UDPProtocolNumber, src, dst, uint16(n))
	udp.SetChecksum(^udp.CalculateChecksum(checksum.Combine(sum, checksumOf(b))))
	ip := header.IPv4(pkt.NetworkHeader().Push(header.IPv4MinimumSize))
	ip.Encode(&header.IPv4Fields{TotalLength: uint16(header.IPv4MinimumSize + n), TTL: 64,
		Protocol: uint8(header.UDPProtocolNumber), SrcAddr: src, DstAddr: dst})
	ip.SetChecksum(^ip.CalculateChecksum())
	header.Ethernet(pkt.LinkHeader().Push(header.EthernetMinimumSize)).Encode(&header.EthernetFields{
		SrcAddr: tcpip.LinkAddress(g.o.MAC[:]), DstAddr: tcpip.LinkAddress(mac[:]), Type: header.IPv4ProtocolNumber})
	g.out.put(pkt)
}

// mayAsk reports whether a datagram's source address is unspecified, or is bound on the switch to the
// port of the client's MAC: no other port may send from such an address. For whole frames
// asksForAnother has also checked the MAC; for reassembled fragments mayAsk is the only check.
func (g *Gateway) mayAsk(b []byte, from netip.Addr) bool {
	mac, ok := clientOf(b)
	return ok && (from.IsUnspecified() || g.sw.Holds(mac, from))
}

// Offset of the client's MAC in a DHCP message: chaddr (RFC 2131, 2).
const (
	dhcpClient    = 28
	dhcpClientEnd = dhcpClient + 6
)

func clientOf(b []byte) (mac wire.MAC, ok bool) {
	if len(b) < dhcpClientEnd {
		return mac, false
	}
	return wire.MAC(b[dhcpClient:dhcpClientEnd]), true
}

// asksForAnother reports whether a frame, b from its network header on, is a DHCP message whose
// client's MAC is not the frame's source. A client has to send its messages itself; the gateway
// accepts no relays.
func asksForAnother(h *splitter.Headers, src wire.MAC, b []byte) bool {
	if h.Class != splitter.UDP || h.IPv6 || h.Flow.DstPort != portDHCPServer {
		return false
	}
	mac, ok := clientOf(b[min(len(b), int(h.HdrLen-h.L3Off)):])
	return !ok || mac != src
}

// answerDHCP returns the answer to a datagram, and its destination. The answer is empty if none is
// due, and nil if the datagram is invalid, or cannot be served.
func (g *Gateway) answerDHCP(b []byte, now time.Time) (reply []byte, to netip.AddrPort) {
	req, err := dhcp4.Decode(b)
	if err != nil || req.Op != dhcp4.BootRequest || !req.Relay.IsUnspecified() { // no relays
		return nil, to
	}
	mac := wire.MAC(req.MAC)
	if g.leases.none[mac] {
		return []byte{}, to // a Host without Addr4 has its IPv4 network elsewhere
	}
	if server, ok := req.Options.Addr(dhcp4.ServerID); ok && server != g.o.Prefix4.Addr() {
		return []byte{}, to // the client has chosen another server
	}
	client, want := req.Client, req.Client
	if a, ok := req.Options.Addr(dhcp4.RequestedAddress); ok {
		want = a
	}
	kind, yours, known := dhcp4.Ack, want, false
	switch req.Type() {
	case dhcp4.Discover:
		kind = dhcp4.Offer
		if yours, known = g.leases.offer(mac, want, now); !known {
			return nil, to
		}
	case dhcp4.Request:
		if !g.leases.confirm(mac, want, now) {
			kind = dhcp4.Nak
		}
	case dhcp4.Inform:
		yours = netip.IPv4Unspecified()
	case dhcp4.Release:
		g.leases.release(mac, client)
		return []byte{}, to
	case dhcp4.Decline:
		g.leases.decline(mac, want, now)
		return []byte{}, to
	default:
		return nil, to
	}
	// An answer to a client without an address, and a NAK (RFC 2131, 4.1), go to the broadcast address.
	to = netip.AddrPortFrom(broadcast4, portDHCPClient)
	if kind != dhcp4.Nak && g.port.filter.neighbor4(client) {
		to = netip.AddrPortFrom(client, portDHCPClient)
	}
	return g.dhcpReply(req, kind, yours).Encode(), to
}

// dhcpReply makes an answer (RFC 2131, table 3).
func (g *Gateway) dhcpReply(req *dhcp4.Message, kind dhcp4.Type, yours netip.Addr) *dhcp4.Message {
	r := &dhcp4.Message{Op: dhcp4.BootReply, XID: req.XID, Flags: req.Flags, MAC: req.MAC, Options: dhcp4.Options{
		dhcp4.MessageType: {byte(kind)},
		dhcp4.ServerID:    g.o.Prefix4.Addr().AsSlice(),
	}}
	if id := req.Options[dhcp4.ClientID]; id != nil {
		r.Options[dhcp4.ClientID] = id // RFC 6842
	}
	if kind == dhcp4.Nak {
		return r
	}
	r.Yours, r.Client = yours, req.Client
	g.network(r.Options, wire.MAC(req.MAC))
	if req.Type() != dhcp4.Inform {
		r.Options[dhcp4.LeaseTime] = binary.BigEndian.AppendUint32(nil, uint32(leaseTime/time.Second))
	}
	return r
}

// network adds the options that describe the network. Without NAT it names no router, because the
// client may have another network with a router.
func (g *Gateway) network(o dhcp4.Options, mac wire.MAC) {
	gateway4 := g.o.Prefix4.Addr().AsSlice()
	o[dhcp4.SubnetMask] = net.CIDRMask(g.o.Prefix4.Bits(), 32)
	o[dhcp4.BroadcastAddress] = lastOf(g.o.Prefix4).AsSlice()
	o[dhcp4.DNS] = gateway4
	o[dhcp4.DomainName] = []byte(domain)
	o[dhcp4.DomainSearch] = encodeNames(g.search)
	o[dhcp4.InterfaceMTU] = binary.BigEndian.AppendUint16(nil, uint16(g.o.MTU))
	if g.o.NAT {
		o[dhcp4.Router] = gateway4
	}
	if h := g.leases.hosts[mac]; h != nil && h.Name != "" {
		o[dhcp4.HostName] = []byte(h.Name)
	}
}

package gateway

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/iana"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"vnic.dev/vnic/internal/ether"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/splitter"
)

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

// sendLease sends an answer to its client's MAC, also if the IP destination is the broadcast address.
// It does not use the endpoint of the DHCP service: netstack might choose another source address, and it would choose
// the MAC.
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

// mayAsk reports whether a DHCP message has a client's MAC, and comes from the unspecified address or from one for
// which wire.Switch.Holds returns true with this MAC.
func (g *Gateway) mayAsk(b []byte, from netip.Addr) bool {
	mac, ok := clientOf(b)
	return ok && (from.IsUnspecified() || g.sw.Holds(mac, from))
}

// Offsets of the first byte and of the end of the client's MAC in a DHCP message: chaddr (RFC 2131, 2).
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

// asksForAnother reports whether a frame is a datagram to the DHCP port, not fragmented, whose client's MAC is missing
// or not src, the frame's source. b is the frame from its network header on.
func asksForAnother(h *splitter.Headers, src wire.MAC, b []byte) bool {
	if h.Class != splitter.UDP || h.IPv6 || h.Flow.DstPort != portDHCPServer {
		return false
	}
	mac, ok := clientOf(b[min(len(b), int(h.HdrLen-h.L3Off)):])
	return !ok || mac != src
}

// answerDHCP returns the answer to a datagram, and its destination. The answer is empty if none is due, and
// nil if the datagram is invalid or relayed, or no address is free.
func (g *Gateway) answerDHCP(b []byte, now time.Time) (reply []byte, to netip.AddrPort) {
	req, err := dhcpv4.FromBytes(b)
	if err != nil || req.OpCode != dhcpv4.OpcodeBootRequest || req.HWType != iana.HWTypeEthernet ||
		len(req.ClientHWAddr) != 6 || !req.GatewayIPAddr.IsUnspecified() { // no relays
		return nil, to
	}
	mac := wire.MAC(req.ClientHWAddr)
	if g.leases.none[mac] {
		return []byte{}, to // a Host without Addr4 has its IPv4 network elsewhere
	}
	if server, ok := optionAddr(req, dhcpv4.OptionServerIdentifier); ok && server != g.o.Prefix4.Addr() {
		return []byte{}, to // the message is for another server
	}
	client := netip.AddrFrom4([4]byte(req.ClientIPAddr.To4()))
	want := client
	if a, ok := optionAddr(req, dhcpv4.OptionRequestedIPAddress); ok {
		want = a
	}
	kind, yours, known := dhcpv4.MessageTypeAck, want, false
	switch req.MessageType() {
	case dhcpv4.MessageTypeDiscover:
		kind = dhcpv4.MessageTypeOffer
		if yours, known = g.leases.offer(mac, want, now); !known {
			return nil, to
		}
	case dhcpv4.MessageTypeRequest:
		if !g.leases.confirm(mac, want, now) {
			kind = dhcpv4.MessageTypeNak
		}
	case dhcpv4.MessageTypeInform:
		yours = netip.IPv4Unspecified()
	case dhcpv4.MessageTypeRelease:
		g.leases.release(mac, client)
		return []byte{}, to
	case dhcpv4.MessageTypeDecline:
		g.leases.decline(mac, want, now)
		return []byte{}, to
	default:
		return nil, to
	}
	// A NAK (RFC 2131, 4.1), and an answer to a client whose ciaddr is no guest's address in the network, go to the
	// broadcast address.
	to = netip.AddrPortFrom(broadcast4, portDHCPClient)
	if kind != dhcpv4.MessageTypeNak && g.port.filter.neighbor4(client) {
		to = netip.AddrPortFrom(client, portDHCPClient)
	}
	return g.dhcpReply(req, kind, yours).ToBytes(), to
}

func optionAddr(m *dhcpv4.DHCPv4, code dhcpv4.OptionCode) (a netip.Addr, ok bool) {
	a, ok = netip.AddrFromSlice(m.Options.Get(code))
	return a, ok && a.Is4()
}

// dhcpReply makes an answer (RFC 2131, table 3).
func (g *Gateway) dhcpReply(req *dhcpv4.DHCPv4, kind dhcpv4.MessageType, yours netip.Addr) *dhcpv4.DHCPv4 {
	r := &dhcpv4.DHCPv4{OpCode: dhcpv4.OpcodeBootReply, HWType: req.HWType, TransactionID: req.TransactionID,
		Flags: req.Flags, ClientHWAddr: req.ClientHWAddr, Options: dhcpv4.Options{}}
	r.UpdateOption(dhcpv4.OptMessageType(kind))
	r.UpdateOption(dhcpv4.OptServerIdentifier(g.o.Prefix4.Addr().AsSlice()))
	if id := req.Options.Get(dhcpv4.OptionClientIdentifier); id != nil {
		r.UpdateOption(dhcpv4.OptClientIdentifier(id)) // RFC 6842
	}
	if kind == dhcpv4.MessageTypeNak {
		return r
	}
	r.YourIPAddr, r.ClientIPAddr = yours.AsSlice(), req.ClientIPAddr
	g.network(r, wire.MAC(req.ClientHWAddr))
	if req.MessageType() != dhcpv4.MessageTypeInform {
		r.UpdateOption(dhcpv4.OptIPAddressLeaseTime(leaseTime))
	}
	return r
}

// network adds the options about the gateway's network, and the client's host name if it has one. Without NAT it names
// no router.
func (g *Gateway) network(r *dhcpv4.DHCPv4, mac wire.MAC) {
	gateway4 := net.IP(g.o.Prefix4.Addr().AsSlice())
	r.UpdateOption(dhcpv4.OptSubnetMask(net.CIDRMask(g.o.Prefix4.Bits(), 32)))
	r.UpdateOption(dhcpv4.OptBroadcastAddress(lastOf(g.o.Prefix4).AsSlice()))
	r.UpdateOption(dhcpv4.OptDNS(gateway4))
	r.UpdateOption(dhcpv4.OptDomainName(domain))
	r.UpdateOption(dhcpv4.OptGeneric(dhcpv4.OptionDNSDomainSearchList, encodeNames(g.search)))
	r.UpdateOption(dhcpv4.OptGeneric(dhcpv4.OptionInterfaceMTU, binary.BigEndian.AppendUint16(nil, uint16(g.o.MTU))))
	if g.o.NAT {
		r.UpdateOption(dhcpv4.OptRouter(gateway4))
	}
	if h := g.leases.hosts[mac]; h != nil && h.Name != "" {
		r.UpdateOption(dhcpv4.OptHostName(h.Name))
	}
}

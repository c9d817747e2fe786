package gateway

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/iana"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"

	"vnic.dev/vnic/splitter"
	"vnic.dev/vnic/stack/internal/ether"
	"vnic.dev/vnic/wire"
)

// startDHCP serves DHCP, if there is an IPv4 network.
func (g *Gateway) startDHCP() error {
	if !g.o.Prefix4.IsValid() {
		return nil
	}
	at := tcpip.FullAddress{NIC: ether.NIC, Port: portDHCPServer}
	if err := g.serveDatagrams(at, ipv4.ProtocolNumber, g.dhcp); err != nil {
		return fmt.Errorf("dhcp: %w", err)
	}
	return nil
}

func (g *Gateway) dhcp(at *datagramServer, d datagram) {
	var reply []byte
	var to netip.AddrPort
	if g.mayAsk(d.data, d.from.Addr()) {
		reply, to = g.answerDHCP(d.data, time.Now())
	}
	if reply == nil {
		g.count.badDHCP.Add(1)
	}
	if len(reply) > 0 {
		at.reply(reply, to)
	}
}

// mayAsk says whether a datagram asks in the name of who sent it. That of a whole frame is known by
// its MAC, see asksForAnother; of fragments only by the source address, which no other port has.
func (g *Gateway) mayAsk(b []byte, from netip.Addr) bool {
	mac, ok := clientOf(b)
	return ok && (from.IsUnspecified() || g.sw.Holds(mac, from))
}

// Where the client's MAC lies in a DHCP message: chaddr (RFC 2131, 2).
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

// asksForAnother says whether a frame, b from its network header on, is a DHCP message with another
// client's MAC than that which it came from. A client sends for itself; relays have no business
// here.
func asksForAnother(h *splitter.Headers, src wire.MAC, b []byte) bool {
	if h.Class != splitter.UDP || h.IPv6 || h.Flow.DstPort != portDHCPServer {
		return false
	}
	mac, ok := clientOf(b[min(len(b), int(h.HdrLen-h.L3Off)):])
	return !ok || mac != src
}

// answerDHCP gives the answer to a datagram, and where it goes to. It is empty if none is due, nil
// if the datagram is not to be understood, or nothing can be done for it.
func (g *Gateway) answerDHCP(b []byte, now time.Time) (reply []byte, to netip.AddrPort) {
	req, err := dhcpv4.FromBytes(b)
	if err != nil || req.OpCode != dhcpv4.OpcodeBootRequest || req.HWType != iana.HWTypeEthernet ||
		len(req.ClientHWAddr) != 6 ||
		!req.GatewayIPAddr.IsUnspecified() { // relays have no business here
		return nil, to
	}
	mac := wire.MAC(req.ClientHWAddr)
	if g.leases.none[mac] {
		return []byte{}, to // it is on another network
	}
	if server, ok := optionAddr(req.Options, dhcpv4.OptionServerIdentifier); ok && server != g.o.Prefix4.Addr() {
		return []byte{}, to // the client has chosen another server
	}
	client, want := addr4(req.ClientIPAddr), addr4(req.ClientIPAddr)
	if a, ok := optionAddr(req.Options, dhcpv4.OptionRequestedIPAddress); ok {
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
	r, err := g.dhcpReply(req, kind, yours)
	if err != nil {
		return nil, to
	}
	// To a client that has no address yet, and with a NAK (RFC 2131, 4.1), the answer is a
	// broadcast, which each may take.
	to = netip.AddrPortFrom(broadcast4, portDHCPClient)
	if kind != dhcpv4.MessageTypeNak && g.port.filter.neighbor4(client) {
		to = netip.AddrPortFrom(client, portDHCPClient)
	}
	return r.ToBytes(), to
}

// dhcpReply makes an answer (RFC 2131, table 3).
func (g *Gateway) dhcpReply(req *dhcpv4.DHCPv4, kind dhcpv4.MessageType, yours netip.Addr) (*dhcpv4.DHCPv4, error) {
	own := net.IP(g.o.Prefix4.Addr().AsSlice())
	mods := []dhcpv4.Modifier{
		dhcpv4.WithReply(req),
		dhcpv4.WithMessageType(kind),
		dhcpv4.WithOption(dhcpv4.OptServerIdentifier(own)),
		dhcpv4.WithOptionCopied(req, dhcpv4.OptionClientIdentifier), // RFC 6842
	}
	if kind != dhcpv4.MessageTypeNak {
		mods = append(mods, dhcpv4.WithYourIP(yours.AsSlice()), dhcpv4.WithClientIP(req.ClientIPAddr))
		mods = append(mods, g.network(own, wire.MAC(req.ClientHWAddr))...)
	}
	if kind != dhcpv4.MessageTypeNak && req.MessageType() != dhcpv4.MessageTypeInform {
		mods = append(mods, dhcpv4.WithOption(dhcpv4.OptIPAddressLeaseTime(leaseTime)))
	}
	return dhcpv4.New(mods...)
}

// network is what a client learns of its network. Without NAT there is no router: it may have
// another network that has one.
func (g *Gateway) network(own net.IP, mac wire.MAC) []dhcpv4.Modifier {
	mods := []dhcpv4.Modifier{
		dhcpv4.WithNetmask(net.CIDRMask(g.o.Prefix4.Bits(), 32)),
		dhcpv4.WithOption(dhcpv4.OptBroadcastAddress(lastOf(g.o.Prefix4).AsSlice())),
		dhcpv4.WithDNS(own),
		dhcpv4.WithOption(dhcpv4.OptDomainName(domain)),
		dhcpv4.WithGeneric(dhcpv4.OptionInterfaceMTU, binary.BigEndian.AppendUint16(nil, uint16(g.o.MTU))),
	}
	if g.o.NAT {
		mods = append(mods, dhcpv4.WithRouter(own))
	}
	if h := g.leases.hosts[mac]; h != nil && h.Name != "" {
		mods = append(mods, dhcpv4.WithOption(dhcpv4.OptHostName(h.Name)))
	}
	return mods
}

// optionAddr is an option's address.
func optionAddr(o dhcpv4.Options, code dhcpv4.OptionCode) (netip.Addr, bool) {
	return netip.AddrFromSlice(o.Get(code))
}

// addr4 is an address of a DHCP header.
func addr4(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}

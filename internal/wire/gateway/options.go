package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"

	"vnic.dev/vnic/internal/wire"
)

// ErrBadOptions is in New's error for invalid options (errors.Is).
var ErrBadOptions = errors.New("bad gateway options")

// Options configure a gateway.
type Options struct {
	Name string // of the port; "" is "gateway"
	MAC  wire.MAC
	MTU  int // of the network; 0: 1500
	// MaxMTU is the longest IP packet, or segment of a GSO packet, that the gateway accepts, in bytes; 0: MTU.
	MaxMTU int
	// Prefix4 and Prefix6 are the gateway's own addresses, each with the length of its network's prefix, such as
	// 10.118.110.254/24 and fd76:6e69::fe/64. One of them may be the zero Prefix: none. In a Prefix6 of 64 bits guests may
	// configure addresses of their own (EUI64).
	Prefix4, Prefix6 netip.Prefix
	Hosts            []Host
	Forwards         []Forward
	// NAT lets guests reach the host's network, and the host's loopback by the gateway's addresses, as far as Policy and
	// Own allow; DNS questions that the gateway cannot answer itself go to the host's resolvers.
	NAT    bool
	Policy Policy
	Log    *slog.Logger
	// Own reports whether a port of the host belongs to this program; nil: none does. Guests reach such a port
	// only if Policy.HostPorts names it alone or in a range of at most 100 ports.
	Own func(port uint16) bool
	// Outside makes the sockets of the host, except TCP forwards', and reads the host's addresses and resolvers; nil:
	// this process does. A Dialer in another process also checks the Policy given to NewDialer.
	Outside Outside
}

// Outside makes sockets of the host, and reads its addresses and resolvers, for a gateway.
type Outside interface {
	// Dial connects to an address; network is "tcp".
	Dial(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error)
	// OpenFlow makes a socket of a datagram flow of NAT.
	OpenFlow(ctx context.Context, f Flow) (*net.UDPConn, error)
	// OpenAnswer makes a UDP socket with a free port, connected to a.Sender. Its address is the one in a.Listen; if that
	// is unspecified, the kernel chooses one.
	OpenAnswer(ctx context.Context, a Answer) (*net.UDPConn, error)
	// DialResolver connects to one of Resolvers; network is "tcp" or "udp".
	DialResolver(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error)
	Resolvers() []netip.AddrPort
	Addrs() ([]netip.Addr, error)
	// ListenUDP makes the socket of a UDP forward, at Forward.Listen.
	ListenUDP(addr netip.AddrPort) (Datagrams, error)
}

// Datagrams is an unconnected UDP socket.
type Datagrams interface {
	ReadFromUDPAddrPort(b []byte) (int, netip.AddrPort, error)
	WriteToUDPAddrPort(b []byte, to netip.AddrPort) (int, error)
	// Lost returns how many received datagrams the kernel has dropped, mostly for lack of room, since the socket was
	// made. The caller uses the lower 32 bits.
	Lost() uint64
	LocalAddr() net.Addr
	Close() error
}

// Host is a guest. DHCP gives Addr4 only to MAC, if both are set; DNS answers for Name, if it is set.
type Host struct {
	Name         string     // "": none
	MAC          wire.MAC   // zero: unknown
	Addr4, Addr6 netip.Addr // zero: none; DHCP does not answer a MAC without Addr4
}

// Forward sends connections, or datagrams, to a socket of the host on to a guest.
type Forward struct {
	Proto  string         // "tcp" or "udp"
	Listen netip.AddrPort // on the host; port 0: a free one, which Gateway.Forwards returns
	To     netip.AddrPort // a guest's address in one of the gateway's networks, and its port
}

// GatewayName is the gateway's name in DNS, and the default of Options.Name.
const GatewayName = "gateway"

// EUI64 returns the address that a guest may make from its MAC in a network with a prefix of 64 bits (RFC 4862, 5.5.3;
// RFC 4291, appendix A).
func EUI64(network netip.Prefix, mac wire.MAC) netip.Addr {
	b := network.Masked().Addr().As16()
	copy(b[8:], []byte{mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]})
	return netip.AddrFrom16(b)
}

func bad(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrBadOptions, fmt.Errorf(format, args...))
}

// check sets defaults in o, and returns an error with ErrBadOptions if the options are invalid.
func (o *Options) check() error {
	o.Name, o.MTU = cmp.Or(o.Name, GatewayName), cmp.Or(o.MTU, 1500)
	o.MaxMTU = cmp.Or(o.MaxMTU, o.MTU)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	switch p4, p6 := o.Prefix4, o.Prefix6; {
	case o.MAC == wire.MAC{} || o.MAC[0]&1 != 0 || o.MAC == wire.ControlMAC:
		return bad("%x is no MAC for it", o.MAC)
	case !p4.IsValid() && !p6.IsValid():
		return bad("it has neither an IPv4 nor an IPv6 address")
	case p4.IsValid() && (!p4.Addr().Is4() || p4.Bits() < 8 || p4.Bits() > 30 || p4.Addr() == p4.Masked().Addr() ||
		p4.Addr() == lastOf(p4)):
		return bad("%v is no address in an IPv4 network of 8 to 30 bits", p4)
	case p6.IsValid() && (!p6.Addr().Is6() || p6.Addr().Is4In6() || !p6.Addr().IsGlobalUnicast() || p6.Bits() > 126):
		return bad("%v is no address in an IPv6 network", p6)
	case o.MTU < 576 || o.MTU > 65521 || p6.IsValid() && o.MTU < 1280: // least: RFC 791; RFC 8200, 5
		return bad("an MTU of %d", o.MTU)
	case o.MaxMTU < o.MTU || o.MaxMTU > 65521:
		return bad("packets of %d at most, with an MTU of %d", o.MaxMTU, o.MTU)
	}
	return errors.Join(o.checkHosts(), o.checkForwards(), o.checkPolicy())
}

func (o *Options) checkHosts() error {
	names, macs := map[string]bool{GatewayName: true}, map[wire.MAC]bool{o.MAC: true}
	addrs := map[netip.Addr]bool{o.Prefix4.Addr(): true, o.Prefix6.Addr(): true}
	for _, h := range o.Hosts {
		name := strings.ToLower(h.Name)
		switch {
		case name != "" && !IsLabel(name):
			return bad("host name %q: letters, digits and - only, no - first or last, at most 63", h.Name)
		case name != "" && names[name]:
			return bad("host name %q twice", h.Name)
		case h.MAC != wire.MAC{} && (macs[h.MAC] || h.MAC[0]&1 != 0):
			return bad("host %q: MAC %x is another's, or a group's", h.Name, h.MAC)
		}
		names[name], macs[h.MAC] = true, true
		for _, a := range []netip.Addr{h.Addr4, h.Addr6} {
			switch {
			case !a.IsValid():
			case addrs[a]:
				return bad("host %q: address %v twice", h.Name, a)
			case !o.Prefix4.Contains(a) && !o.Prefix6.Contains(a):
				return bad("host %q: address %v is in no network of the gateway", h.Name, a)
			default:
				addrs[a] = true
			}
		}
		if h.Addr4.IsValid() && !h.Addr4.Is4() || h.Addr6.IsValid() && !h.Addr6.Is6() {
			return bad("host %q: %v and %v are not an IPv4 and an IPv6 address", h.Name, h.Addr4, h.Addr6)
		}
	}
	return nil
}

func (o *Options) checkForwards() error {
	for _, f := range o.Forwards {
		switch {
		case f.Proto != "tcp" && f.Proto != "udp":
			return bad("forward of %q: only tcp and udp", f.Proto)
		case !f.Listen.Addr().IsValid():
			return bad("forward to %v: no address to listen on", f.To)
		case f.To.Port() == 0 || !o.Prefix4.Contains(f.To.Addr()) && !o.Prefix6.Contains(f.To.Addr()):
			return bad("forward to %v: no guest's port", f.To)
		case f.To.Addr() == o.Prefix4.Addr() || f.To.Addr() == o.Prefix6.Addr():
			return bad("forward to %v: that is the gateway", f.To)
		}
	}
	return nil
}

// IsLabel reports whether s is a label of a host name (RFC 1123, 2.1), in lower case.
func IsLabel(s string) bool {
	for _, c := range s {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return s != "" && len(s) <= 63 && s[0] != '-' && s[len(s)-1] != '-'
}

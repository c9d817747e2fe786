// Package dhcp asks for a guest's address: a DHCP client (RFC 2131) for a guest that has no other. It asks once and renews nothing:
// the gateway gives each of its guests the same address for as long as it lives.
package dhcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"golang.org/x/sys/unix"
)

// Lease is what a server gave.
type Lease struct {
	Addr    netip.Prefix
	Routers []netip.Addr
	DNS     []netip.Addr
	Name    string // of this host; "" = none
}

// ErrNoAnswer says that nobody has answered.
var ErrNoAnswer = errors.New("no DHCP server answers")

// How often a client asks, and how long it waits for each answer: a server on the same machine needs milliseconds.
const (
	tries = 5
	wait  = time.Second
)

// Ask asks on an interface, which must be up and needs no address.
func Ask(ctx context.Context, name string, mac net.HardwareAddr) (Lease, error) {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		cerr := c.Control(func(fd uintptr) {
			err = errors.Join(unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BROADCAST, 1), unix.BindToDevice(int(fd), name))
		})
		return errors.Join(err, cerr)
	}}
	pc, err := lc.ListenPacket(ctx, "udp4", ":68")
	if err != nil {
		return Lease{}, fmt.Errorf("DHCP on %s: %w", name, err)
	}
	defer func() { _ = pc.Close() }()
	c := client{pc: pc, server: &net.UDPAddr{IP: net.IPv4bcast, Port: 67}, mac: mac, wait: wait}
	l, err := c.lease(ctx)
	if err != nil {
		return l, fmt.Errorf("DHCP on %s: %w", name, err)
	}
	return l, nil
}

type client struct {
	pc     net.PacketConn
	server net.Addr
	mac    net.HardwareAddr
	wait   time.Duration
}

// lease is DISCOVER, OFFER, REQUEST, ACK. Answers are asked to be broadcast, as we have no address yet.
func (c *client) lease(ctx context.Context) (Lease, error) {
	m, err := dhcpv4.NewDiscovery(c.mac, dhcpv4.WithBroadcast(true), dhcpv4.WithRequestedOptions(dhcpv4.OptionHostName))
	if err != nil {
		return Lease{}, err
	}
	offer, err := c.ask(ctx, m, dhcpv4.MessageTypeOffer)
	if err != nil {
		return Lease{}, err
	}
	if m, err = dhcpv4.NewRequestFromOffer(offer, dhcpv4.WithBroadcast(true), dhcpv4.WithRequestedOptions(dhcpv4.OptionHostName)); err != nil {
		return Lease{}, err
	}
	ack, err := c.ask(ctx, m, dhcpv4.MessageTypeAck)
	if err != nil {
		return Lease{}, err
	}
	return read(ack)
}

// ask sends a message until it is answered.
func (c *client) ask(ctx context.Context, m *dhcpv4.DHCPv4, want dhcpv4.MessageType) (*dhcpv4.DHCPv4, error) {
	stop := context.AfterFunc(ctx, func() { _ = c.pc.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	b := make([]byte, 1500)
	for range tries {
		if _, err := c.pc.WriteTo(m.ToBytes(), c.server); err != nil {
			return nil, err
		}
		_ = c.pc.SetReadDeadline(time.Now().Add(c.wait))
		for ctx.Err() == nil {
			n, _, err := c.pc.ReadFrom(b)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if err != nil {
				return nil, err
			}
			r, err := dhcpv4.FromBytes(b[:n])
			if err == nil && r.OpCode == dhcpv4.OpcodeBootReply && r.TransactionID == m.TransactionID && r.MessageType() == want {
				return r, nil
			}
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
	return nil, ErrNoAnswer
}

// read takes what is wanted from an acknowledgement.
func read(ack *dhcpv4.DHCPv4) (Lease, error) {
	addr, ok := netip.AddrFromSlice(ack.YourIPAddr.To4())
	ones, bits := ack.SubnetMask().Size()
	if !ok || !addr.IsGlobalUnicast() || bits != 32 {
		return Lease{}, fmt.Errorf("a lease of address %v, mask %v", ack.YourIPAddr, ack.SubnetMask())
	}
	l := Lease{Addr: netip.PrefixFrom(addr, ones), Routers: addrs(ack.Router()), DNS: addrs(ack.DNS()), Name: ack.HostName()}
	if !hostName(l.Name) {
		l.Name = ""
	}
	return l, nil
}

func addrs(list []net.IP) (out []netip.Addr) {
	for _, ip := range list {
		if a, ok := netip.AddrFromSlice(ip.To4()); ok {
			out = append(out, a)
		}
	}
	return out
}

// hostName says whether a name is fit to be a host's (RFC 1123, 2.1): it goes into files.
func hostName(s string) bool {
	const longest = 64 // Linux's
	for _, r := range s {
		if (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '.' {
			return false
		}
	}
	return len(s) <= longest
}

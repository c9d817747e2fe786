// Package dhcp asks for a guest's address: a DHCP client (RFC 2131) for a guest that has no other.
// It asks once and renews nothing: the gateway gives each of its guests the same address for as
// long as it lives.
package dhcp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/nclient4"
	"golang.org/x/sys/unix"
)

// Lease is what a server gave.
type Lease struct {
	Addr    netip.Prefix
	Routers []netip.Addr
	DNS     []netip.Addr
	Name    string // of this host; "" = none
	MTU     int    // of the network; 0 = none is said
}

// ErrNoAnswer says that no server has answered.
var ErrNoAnswer = errors.New("no DHCP server answers")

// How often a client asks, and how long it waits for the first answer; each next wait is twice as
// long, 5 s in all for either of the two messages. A server on the same machine needs milliseconds.
const (
	tries = 5
	wait  = 160 * time.Millisecond
)

// minMTU is the least that a server may say (RFC 2132, 5.1).
const minMTU = 68

// Ask asks on an interface, which must be up and needs no address.
//
// Some servers answer to the address that they give, though they are asked to broadcast (passt before 2024): the kernel
// gives no UDP socket such a packet before the address is ours, so a packet socket is what listens (RFC 2131, 4.1). A
// kernel without those gets what is broadcast.
func Ask(ctx context.Context, name string, mac net.HardwareAddr) (Lease, error) {
	pc, err := nclient4.NewRawUDPConn(name, dhcpv4.ClientPort)
	if errors.Is(err, unix.EAFNOSUPPORT) {
		pc, err = listenUDP(ctx, name)
	}
	if err != nil {
		return Lease{}, fmt.Errorf("DHCP on %s: %w", name, err)
	}
	l, err := ask(ctx, pc, mac)
	if err != nil {
		return l, fmt.Errorf("DHCP on %s: %w", name, err)
	}
	return l, nil
}

// listenUDP gives a UDP socket of an interface without an address.
func listenUDP(ctx context.Context, name string) (net.PacketConn, error) {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		cerr := c.Control(func(fd uintptr) {
			err = errors.Join(unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BROADCAST, 1),
				unix.BindToDevice(int(fd), name))
		})
		return errors.Join(err, cerr)
	}}
	return lc.ListenPacket(ctx, "udp4", ":68")
}

// ask is DISCOVER, OFFER, REQUEST, ACK; it closes pc. Answers are asked to be broadcast, as we have
// no address yet.
func ask(ctx context.Context, pc net.PacketConn, mac net.HardwareAddr, opts ...nclient4.ClientOpt) (Lease, error) {
	opts = append([]nclient4.ClientOpt{nclient4.WithTimeout(wait), nclient4.WithRetry(tries)}, opts...)
	c, err := nclient4.NewWithConn(pc, mac, opts...)
	if err != nil {
		return Lease{}, errors.Join(err, pc.Close())
	}
	defer func() { _ = c.Close() }()
	got, err := c.Request(ctx, dhcpv4.WithBroadcast(true), dhcpv4.WithRequestedOptions(dhcpv4.OptionHostName,
		dhcpv4.OptionInterfaceMTU))
	switch {
	case ctx.Err() != nil:
		return Lease{}, context.Cause(ctx)
	case errors.Is(err, nclient4.ErrNoResponse):
		return Lease{}, ErrNoAnswer
	case err != nil:
		return Lease{}, err
	}
	return read(got.ACK)
}

// read takes what is wanted from an acknowledgement.
func read(ack *dhcpv4.DHCPv4) (Lease, error) {
	addr, ok := netip.AddrFromSlice(ack.YourIPAddr.To4())
	ones, bits := ack.SubnetMask().Size()
	if !ok || !addr.IsGlobalUnicast() || bits != 32 {
		return Lease{}, fmt.Errorf("a lease of address %v, mask %v", ack.YourIPAddr, ack.SubnetMask())
	}
	l := Lease{Addr: netip.PrefixFrom(addr, ones), Routers: addrs(ack.Router()), DNS: addrs(ack.DNS()),
		Name: ack.HostName()}
	if b := ack.Options.Get(dhcpv4.OptionInterfaceMTU); len(b) == 2 {
		if n := int(binary.BigEndian.Uint16(b)); n >= minMTU {
			l.MTU = n
		}
	}
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

// Package dhcp gets a guest's address: a DHCP client (RFC 2131) that gets one lease and renews nothing.
package dhcp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/nclient4"
	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/limits"
)

// Lease is a server's answer.
type Lease struct {
	Addr    netip.Prefix
	Routers []netip.Addr
	DNS     []netip.Addr
	Name    string // of this host; "": none, or one that is not a host name
	MTU     int    // of the network; 0: unknown, or less than minMTU
}

// ErrNoAnswer means that no server has answered a message in time.
var ErrNoAnswer = errors.New("no DHCP server answers")

// How often a client sends each message, at most, and the wait after the first time. Each later wait is twice as
// long as the wait before.
const (
	tries = 5
	wait  = limits.Lease
)

// minMTU is the minimum MTU of the option (RFC 2132, 5.1).
const minMTU = 68

// Ask gets a lease on an interface, which must be up and needs no address.
//
// Some servers, such as old versions of passt, send the answer to the address that they assign, although the
// client asks for broadcasts (RFC 2131, 4.1). Before the interface has this address, the kernel passes such an
// answer to no UDP socket. So Ask listens on a packet socket, or, if the kernel has none, on a UDP socket, which
// receives only broadcasts.
func Ask(ctx context.Context, name string, mac net.HardwareAddr) (l Lease, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("DHCP on %s: %w", name, err)
		}
	}()
	if len(mac) != 6 {
		return l, fmt.Errorf("MAC %q: not that of an Ethernet interface", mac)
	}
	pc, err := nclient4.NewRawUDPConn(name, dhcpv4.ClientPort)
	if errors.Is(err, unix.EAFNOSUPPORT) {
		pc, err = listenUDP(ctx, name)
	}
	if err != nil {
		return l, err
	}
	return ask(ctx, pc, mac)
}

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

// ask follows RFC 2131, 3.1. It closes pc.
func ask(ctx context.Context, pc net.PacketConn, mac net.HardwareAddr, opts ...nclient4.ClientOpt) (Lease, error) {
	opts = append([]nclient4.ClientOpt{nclient4.WithTimeout(wait.Here()), nclient4.WithRetry(tries)}, opts...)
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

func read(ack *dhcpv4.DHCPv4) (Lease, error) {
	yours := addrs([]net.IP{ack.YourIPAddr})
	ones, bits := ack.SubnetMask().Size()
	if len(yours) == 0 || !yours[0].IsGlobalUnicast() || bits != 32 {
		return Lease{}, fmt.Errorf("a lease of address %v, mask %v", ack.YourIPAddr, ack.SubnetMask())
	}
	l := Lease{Addr: netip.PrefixFrom(yours[0], ones), Routers: addrs(ack.Router()), DNS: addrs(ack.DNS()),
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

// hostName reports whether s has only the characters of host names (RFC 1123, 2.1) and is not too long. The server
// is not trusted.
func hostName(s string) bool {
	const longest = 64 // Linux's
	for _, r := range s {
		if (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '.' {
			return false
		}
	}
	return len(s) <= longest
}

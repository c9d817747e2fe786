// Package dhcp gets a guest's address: a DHCP client (RFC 2131) for a guest that has no other. It
// asks once and renews nothing, because the gateway of a lab has a fixed address for each guest.
package dhcp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/dhcp4"
)

// Lease is a server's answer.
type Lease struct {
	Addr    netip.Prefix
	Routers []netip.Addr
	DNS     []netip.Addr
	Name    string // of this host; "" = none
	MTU     int    // of the network; 0 = unknown
}

// ErrNoAnswer means that no server has answered.
var ErrNoAnswer = errors.New("no DHCP server answers")

// minMTU is the minimum MTU that a server may send (RFC 2132, 5.1).
const minMTU = 68

// Ask asks on an interface, which must be up and needs no address.
//
// Some servers send the answer to the address that they assign, although the client asks for
// broadcasts (passt before 2024). The kernel passes such a packet to no UDP socket before the
// interface has the assigned address, so Ask listens on a packet socket (RFC 2131, 4.1). With a
// kernel without packet sockets Ask receives only broadcasts.
func Ask(ctx context.Context, name string, mac net.HardwareAddr) (l Lease, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("DHCP on %s: %w", name, err)
		}
	}()
	if len(mac) != 6 {
		return l, fmt.Errorf("MAC %q: not that of an Ethernet interface", mac)
	}
	c, err := listenPacket(name, [6]byte(mac))
	if errors.Is(err, unix.EAFNOSUPPORT) {
		c, err = listenUDP(ctx, name)
	}
	if err != nil {
		return l, err
	}
	defer func() { _ = c.Close() }()
	return ask(ctx, &client{conn: c, wait: wait.Here(), mac: [6]byte(mac)})
}

func ask(ctx context.Context, c *client) (Lease, error) {
	ack, err := c.lease(ctx)
	if err != nil {
		return Lease{}, err
	}
	return read(ack)
}

// read reads the lease from an acknowledgement.
func read(ack *dhcp4.Message) (Lease, error) {
	a, _ := ack.Options.Addr(dhcp4.SubnetMask)
	mask := net.IPMask(a.AsSlice())
	ones, bits := mask.Size()
	if !ack.Yours.IsGlobalUnicast() || bits != 32 {
		return Lease{}, fmt.Errorf("a lease of address %v, mask %v", ack.Yours, mask)
	}
	l := Lease{Addr: netip.PrefixFrom(ack.Yours, ones), Routers: ack.Options.Addrs(dhcp4.Router),
		DNS: ack.Options.Addrs(dhcp4.DNS), Name: strings.TrimRight(string(ack.Options[dhcp4.HostName]), "\x00")}
	if b := ack.Options[dhcp4.InterfaceMTU]; len(b) == 2 {
		if n := int(binary.BigEndian.Uint16(b)); n >= minMTU {
			l.MTU = n
		}
	}
	if !hostName(l.Name) {
		l.Name = ""
	}
	return l, nil
}

// hostName reports whether a name can be a host's name (RFC 1123, 2.1): callers write it to files.
func hostName(s string) bool {
	const longest = 64 // Linux's
	for _, r := range s {
		if (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '.' {
			return false
		}
	}
	return len(s) <= longest
}

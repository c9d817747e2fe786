// Package servelab tests `vnic serve` as a user with a QEMU of their own would: it starts QEMUs with the
// arguments that vnic prints. Some of its tests boot a guest of a lab instead. Its files whose names do not end in
// _test.go make up the guest's program (Main); tests use some of them, too.
package servelab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/dhcp"
	"vnic.dev/vnic/test/internal/guestops"
)

// The guest's operations that read or change an interface are for eth0; in xdp.go, for the interface in args. Linux's
// own drivers run these interfaces.

// stockModules are virtio_net and the drivers of links on top of eth0.
var stockModules = []string{"virtio_net", "8021q", "macvlan", "bridge"}

const (
	iface     = "eth0"
	vlan      = 5
	guestPort = 7000
)

// args are the arguments of an operation, which uses some of the fields. They are also the result of some operations.
type args struct {
	Interface string `json:"interface,omitempty"` // for the operations of xdp.go
	Addr      string `json:"addr,omitempty"`
	MAC       string `json:"mac,omitempty"`
	Bytes     uint64 `json:"bytes,omitempty"`
	Streams   int    `json:"streams,omitempty"`
	MTU       int    `json:"mtu,omitempty"`
	On        bool   `json:"on,omitempty"`
	Queues    uint32 `json:"queues,omitempty"`
}

// Main runs the guest's program, which is vnic's with the operations of this package. It does not return.
func Main() {
	done := func(op func(*args) error) func(context.Context, *args) (any, error) {
		return func(_ context.Context, a *args) (any, error) { return nil, op(a) }
	}
	guestops.Main(map[string]func(context.Context, *args) (any, error){
		"stock.up":         up,
		"stock.stream":     done(func(a *args) error { return streams(a.Addr, a.Bytes, max(a.Streams, 1)) }),
		"stock.upload":     done(func(a *args) error { return several(a.Addr, "u", a.Bytes, a.Streams) }),
		"stock.mtu":        done(setMTU),
		"stock.offloads":   done(func(a *args) error { return offloads(a.On) }),
		"stock.queues":     done(func(a *args) error { return channels(a.Queues) }),
		"stock.datagram":   done(datagram),
		"stock.address":    done(address),
		"stock.xdp":        done(attach),
		"stock.forxdp":     done(forXDP),
		"stock.passed":     passed,
		"stock.vlan":       done(addVLAN),
		"stock.macvlan":    done(addMACVLAN),
		"stock.bridge":     done(addBridge),
		"stock.private":    private,
		"stock.got":        done(func(a *args) error { return got(a.Addr) }),
		"stock.resolve":    resolve,
		"stock.addr6":      addr6,
		"stock.ping":       done(ping),
		"stock.features":   negotiated,
		"stock.interrupts": func(context.Context, *args) (any, error) { return interrupts() },
	})
}

// lease has what DHCP gave, except MTU: that is the MTU that eth0 had when up began.
type lease struct{ Addr, Router, DNS, MTU string }

// up brings lo and eth0 up, takes eth0's address, the router and the resolvers from DHCP, starts servers of streams
// and of HTTP, and returns a lease.
func up(ctx context.Context, _ *args) (any, error) {
	link, err := netlink.LinkByName(iface)
	if err != nil {
		return nil, err
	}
	lo, err := netlink.LinkByName("lo")
	if err := errors.Join(err, netlink.LinkSetUp(lo), netlink.LinkSetUp(link)); err != nil {
		return nil, err
	}
	ack, err := dhcp.Ask(ctx, iface, link.Attrs().HardwareAddr)
	if err != nil {
		return nil, err
	}
	addr := &net.IPNet{IP: ack.Addr.Addr().AsSlice(), Mask: net.CIDRMask(ack.Addr.Bits(), 32)}
	if err := netlink.AddrReplace(link, &netlink.Addr{IPNet: addr}); err != nil {
		return nil, err
	}
	if len(ack.Routers) == 0 {
		return nil, errors.New("DHCP: no router")
	}
	if err := netlink.RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index,
		Gw: ack.Routers[0].AsSlice()}); err != nil {
		return nil, err
	}
	if err := os.MkdirAll("/etc", 0o755); err != nil {
		return nil, err
	}
	var resolvers strings.Builder
	for _, a := range ack.DNS {
		fmt.Fprintln(&resolvers, "nameserver", a)
	}
	if err := os.WriteFile("/etc/resolv.conf", []byte(resolvers.String()), 0o644); err != nil {
		return nil, err
	}
	for port, serve := range map[int]func(net.Listener){guestPort: serveStreams, webPort: serveHTTP} {
		l, err := net.Listen("tcp", fmt.Sprint(":", port))
		if err != nil {
			return nil, err
		}
		go serve(l)
	}
	return &lease{Addr: ack.Addr.Addr().String(), Router: ack.Routers[0].String(), DNS: fmt.Sprint(ack.DNS),
		MTU: fmt.Sprint(link.Attrs().MTU)}, nil
}

func setMTU(a *args) error {
	return guestops.Link(iface, "MTU", func(l netlink.Link) error { return netlink.LinkSetMTU(l, a.MTU) })
}

func datagram(a *args) error {
	c, err := net.Dial("udp4", a.Addr)
	if err != nil {
		return err
	}
	defer c.Close()
	raw, err := c.(*net.UDPConn).SyscallConn()
	if err != nil {
		return err
	}
	cerr := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
	})
	if err := errors.Join(err, cerr); err != nil {
		return err
	}
	_, err = c.Write(stuff(a.Bytes))
	return err
}

func resolve(ctx context.Context, a *args) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	list, err := net.DefaultResolver.LookupNetIP(ctx, "ip6", a.Addr)
	if err != nil || len(list) != 1 {
		return nil, fmt.Errorf("AAAA of %s: %v: %w", a.Addr, list, err)
	}
	return &args{Addr: list[0].String()}, nil
}

// addr6 waits for a global IPv6 address of eth0 that is not temporary, and returns it with its prefix length.
func addr6(context.Context, *args) (any, error) {
	return globalAddr(0)
}

// private turns privacy addresses on for eth0 (RFC 8981, temporary addresses), checks that the kernel sends from one
// to a.Addr, and returns that one.
func private(_ context.Context, a *args) (any, error) {
	if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+iface+"/use_tempaddr", []byte("2"), 0); err != nil {
		return nil, err
	}
	// When an interface comes up, the kernel solicits routers.
	err := guestops.Link(iface, "state", func(l netlink.Link) error {
		return errors.Join(netlink.LinkSetDown(l), netlink.LinkSetUp(l))
	})
	if err != nil {
		return nil, err
	}
	has, err := globalAddr(unix.IFA_F_TEMPORARY)
	if err != nil {
		return nil, err
	}
	c, err := net.Dial("udp6", a.Addr)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if from := c.LocalAddr().(*net.UDPAddr).IP.String(); !strings.HasPrefix(has.Addr, from+"/") {
		return nil, fmt.Errorf("the kernel sends from %s, and not from %s", from, has.Addr)
	}
	return has, nil
}

// globalAddr waits, for at most patience, until eth0 has a usable global IPv6 address that is temporary (with
// IFA_F_TEMPORARY) or is not (with 0), and returns it.
func globalAddr(temporary int) (*args, error) {
	link, err := netlink.LinkByName(iface)
	if err != nil {
		return nil, err
	}
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		list, err := netlink.AddrList(link, unix.AF_INET6)
		if err != nil {
			return nil, err
		}
		for _, a := range list {
			if a.Scope == unix.RT_SCOPE_UNIVERSE && a.Flags&unix.IFA_F_TENTATIVE == 0 &&
				a.Flags&unix.IFA_F_TEMPORARY == temporary {
				return &args{Addr: a.IPNet.String()}, nil
			}
		}
	}
	return nil, errors.New("no global IPv6 address")
}

func addMACVLAN(a *args) error {
	return addLink(a, "macvlan", func(eth, attrs netlink.LinkAttrs) netlink.Link {
		attrs.ParentIndex = eth.Index
		return &netlink.Macvlan{LinkAttrs: attrs, Mode: netlink.MACVLAN_MODE_BRIDGE}
	})
}

func addBridge(a *args) error {
	err := addLink(a, "bridge", func(_, attrs netlink.LinkAttrs) netlink.Link {
		return &netlink.Bridge{LinkAttrs: attrs}
	})
	if err != nil {
		return err
	}
	return guestops.Link(iface, "bridge", func(l netlink.Link) error {
		br, err := netlink.LinkByName("bridge")
		if err != nil {
			return err
		}
		return netlink.LinkSetMaster(l, br)
	})
}

// addLink adds a link, gives it the address a.Addr, and sets it up. The function what makes the link from eth0's
// attributes and from attrs: the name, and a.MAC if that is set.
func addLink(a *args, name string, what func(eth, attrs netlink.LinkAttrs) netlink.Link) error {
	eth, err := netlink.LinkByName(iface)
	if err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	if a.MAC != "" {
		if attrs.HardwareAddr, err = net.ParseMAC(a.MAC); err != nil {
			return err
		}
	}
	l := what(*eth.Attrs(), attrs)
	if err := netlink.LinkAdd(l); err != nil {
		return err
	}
	addr, err := netlink.ParseAddr(a.Addr)
	if err != nil {
		return err
	}
	return errors.Join(netlink.AddrAdd(l, addr), netlink.LinkSetUp(l))
}

func addVLAN(a *args) error {
	return addLink(a, "vlan", func(eth, attrs netlink.LinkAttrs) netlink.Link {
		attrs.ParentIndex, attrs.HardwareAddr = eth.Index, eth.HardwareAddr
		return &netlink.Vlan{LinkAttrs: attrs, VlanId: vlan, VlanProtocol: netlink.VLAN_PROTOCOL_8021Q}
	})
}

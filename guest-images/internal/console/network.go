package console

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/dhcp"
	"vnic.dev/vnic/internal/guestnet"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/rtnl"
)

// network is the guest's network configuration.
type network struct {
	name  string // name of the first interface; "": none
	lease dhcp.Lease
	env   []string // variables for programs
	more  []string // messages for the user
}

// connect configures the interfaces of driver a.Driver by DHCP; if a.OwnDriver is set it leaves the last of
// several interfaces to programs. After an error n may be partly set.
func connect(ctx context.Context, a *agent.Alone) (n network, err error) {
	names, err := interfaces(ctx, "/", a.Driver, limits.ImageInterface.Here())
	if err != nil {
		return n, err
	}
	n.name = names[0]
	var c guestnet.Config
	device := names[0]
	if last := len(names) - 1; a.OwnDriver {
		device = guestnet.PCIAddress(names[last])
	}
	n.env = append(n.env, "VNIC_DEVICE="+device)
	if len(names) > 1 {
		if err := apart("/"); err != nil {
			return n, err
		}
	}
	links := make([]*netlink.LinkAttrs, len(names))
	for i, name := range names {
		leave := a.OwnDriver && i > 0 && i == len(names)-1
		l, err := netlink.LinkByName(name)
		if err == nil && !leave {
			err = netlink.LinkSetUp(l)
		}
		if err != nil {
			return n, fmt.Errorf("%s: up: %w", name, err)
		}
		if leave {
			n.more = append(n.more, left(name, device))
		}
		links[i] = l.Attrs()
		c.Interfaces = append(c.Interfaces, guestnet.Interface{MAC: links[i].HardwareAddr.String(), Leave: leave})
	}
	leases, errs := make([]dhcp.Lease, len(names)), make([]error, len(names))
	var wg sync.WaitGroup
	for i, l := range links {
		if c.Interfaces[i].Leave {
			continue
		}
		wg.Go(func() { leases[i], errs[i] = dhcp.Ask(ctx, names[i], l.HardwareAddr) })
	}
	wg.Wait()
	for i, l := range leases {
		if errs[i] != nil || c.Interfaces[i].Leave {
			continue
		}
		if l.MTU > links[i].MTU { // more than the interface's own MTU: keep that one
			l.MTU = 0
		}
		use(&c, i, l)
		if i > 0 {
			n.more = append(n.more, fmt.Sprintf("%s has %v", names[i], l.Addr))
			continue
		}
		n.lease = l
		if ofVNIC(l) {
			n.env = append(n.env, identity(l.Addr)...)
		}
	}
	if _, err := guestnet.Configure(ctx, c); err != nil {
		return n, err
	}
	if n.lease.Name != "" {
		if err := unix.Sethostname([]byte(n.lease.Name)); err != nil {
			return n, fmt.Errorf("hostname: %w", err)
		}
	}
	return n, errors.Join(errs...)
}

func left(name, device string) string {
	return fmt.Sprintf("%s is not the kernel's: of several virtio NICs the last one, %s, is left to devmem programs "+
		"($VNIC_DEVICE); for two interfaces give the guest three NICs", name, device)
}

// apart makes the kernel answer an ARP request only for an address of the interface that it came to, and send each
// request from an address that suits the target, as several interfaces may be on one switch (Linux:
// Documentation/networking/ip-sysctl.rst, arp_ignore and arp_announce).
func apart(root string) error {
	for name, value := range map[string]string{"arp_ignore": "1", "arp_announce": "2"} {
		if err := os.WriteFile(filepath.Join(root, "proc/sys/net/ipv4/conf/all", name), []byte(value), 0); err != nil {
			return err
		}
	}
	return nil
}

// Names of hosts on vnic's networks; a number follows portName.
const (
	gatewayName = "gateway"
	portName    = "port"
)

// peers is the number of guests for which use adds host names.
const peers = 16

// use configures interface i of c by a lease. Gateways, resolvers and the names of the gateway and of other
// guests come from the lease of interface 0.
func use(c *guestnet.Config, i int, l dhcp.Lease) {
	c.Interfaces[i].Addrs, c.Interfaces[i].MTU = []netip.Prefix{l.Addr}, l.MTU
	if l.Name != "" {
		c.Hosts = append(c.Hosts, guestnet.Host{Addr: l.Addr.Addr(), Names: []string{l.Name}})
	}
	if i > 0 {
		return
	}
	c.Gateways, c.DNS = l.Routers, l.DNS
	for _, r := range l.Routers {
		c.Hosts = append(c.Hosts, guestnet.Host{Addr: r, Names: []string{gatewayName}})
	}
	if !ofVNIC(l) {
		return
	}
	for i := range peers {
		a := l.Addr.Addr().As4()
		a[3] = byte(i + 1)
		kernel := netip.AddrFrom4(a)
		a[3] += guestnet.DevmemHost
		c.Hosts = append(c.Hosts, guestnet.Host{Addr: kernel, Names: []string{guestnet.HostName(i)}},
			guestnet.Host{Addr: netip.AddrFrom4(a), Names: []string{guestnet.DevmemName(i)}})
	}
}

// ofVNIC reports whether a lease has the name that the gateway of a vnic serve without --lab gives: portName and the
// address's last byte less 1.
func ofVNIC(l dhcp.Lease) bool { return l.Name == portName+strconv.Itoa(int(l.Addr.Addr().As4()[3])-1) }

// identity returns environment variables about the guest with address p, or nil if p is not the default address of a
// guest (guestnet.DevmemHost). VNIC_GUESTS=0 means that the number of guests is unknown.
func identity(p netip.Prefix) []string {
	a := p.Addr().As4()
	if a[3] < 1 || a[3] > guestnet.DevmemHost {
		return nil
	}
	index := int(a[3]) - 1
	a[3] += guestnet.DevmemHost
	return []string{"VNIC_INDEX=" + strconv.Itoa(index), "VNIC_GUESTS=0", "VNIC_ADDR=" +
		netip.PrefixFrom(netip.AddrFrom4(a), p.Bits()).String()}
}

// interfaces waits until there is an interface of a driver, and returns the names of its interfaces, in the order of
// their devices' paths. ENODEV: there is none within limit.
func interfaces(ctx context.Context, root, driver string, limit time.Duration) ([]string, error) {
	for end := time.Now().Add(limit); ; { // poll, as sysfs sends no events
		names, err := rtnl.OfDriver(filepath.Join(root, "sys"), driver)
		if err != nil || len(names) > 0 {
			return names, err
		}
		if time.Now().After(end) {
			return nil,
				fmt.Errorf("no network interface of driver %s: is there a NIC of vnic serve, and is the driver in the kernel? %w",
					driver, unix.ENODEV)
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

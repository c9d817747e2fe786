package console

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/dhcp"
	"vnic.dev/vnic/internal/guestnet"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/rtnl"
)

// network is what the guest has of one.
type network struct {
	name  string // of the kernel's interface; "" = none
	lease dhcp.Lease
	env   []string // for programs
	more  []string // what other interfaces have, or became
}

// connect brings the interfaces up, by DHCP: all but the one that the kernel leaves to devmem programs. With an error
// there may be some of a network all the same.
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
	links := make([]rtnl.Link, len(names))
	for i, name := range names {
		leave := a.OwnDriver && i > 0 && i == len(names)-1
		l, err := rtnl.LinkByName(name)
		if err == nil && !leave {
			err = rtnl.SetUp(l.Index)
		}
		if err != nil {
			return n, fmt.Errorf("%s: up: %w", name, err)
		}
		if leave {
			n.more = append(n.more, left(name, device))
		}
		links[i] = l
		c.Interfaces = append(c.Interfaces, guestnet.Interface{MAC: l.HardwareAddr.String(), Leave: leave})
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
		if l.MTU > links[i].MTU { // drivers begin with the largest that the NIC has
			l.MTU = 0
		}
		if i == 0 {
			n.lease = l
			if ofVNIC(l) {
				n.env = append(n.env, identity(l.Addr)...)
			}
			use(&c, l)
			continue
		}
		n.more = append(n.more, fmt.Sprintf("%s has %v", names[i], l.Addr))
		also(&c, i, l)
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

// left says what became of an interface that the kernel lets go of.
func left(name, device string) string {
	return fmt.Sprintf("%s is not the kernel's: of several virtio NICs the last one, %s, is left to devmem programs "+
		"($VNIC_DEVICE); for two interfaces give the guest three NICs", name, device)
}

// apart has each of several interfaces on one switch answer for its own addresses (Linux:
// Documentation/networking/ip-sysctl.rst, arp_ignore and arp_announce).
func apart(root string) error {
	for name, value := range map[string]string{"arp_ignore": "1", "arp_announce": "2"} {
		if err := os.WriteFile(filepath.Join(root, "proc/sys/net/ipv4/conf/all", name), []byte(value), 0); err != nil {
			return err
		}
	}
	return nil
}

// also makes a lease the configuration of an interface that is not the first: routes and resolvers are that one's.
func also(c *guestnet.Config, i int, l dhcp.Lease) {
	c.Interfaces[i].Addrs, c.Interfaces[i].MTU = []netip.Prefix{l.Addr}, l.MTU
	if l.Name != "" {
		c.Hosts = append(c.Hosts, guestnet.Host{Addr: l.Addr.Addr(), Names: []string{l.Name}})
	}
}

// gatewayName is what the gateway is called everywhere else, portName with a number what it calls us.
const (
	gatewayName = "gateway"
	portName    = "port"
)

// peers is how many guests of `vnic serve` can have names as guests of vnic boot have, so that the
// same programs run: as many as can have GPUs.
const peers = 16

// use makes a lease the network's configuration.
func use(c *guestnet.Config, l dhcp.Lease) {
	c.Interfaces[0].Addrs, c.Interfaces[0].MTU = []netip.Prefix{l.Addr}, l.MTU
	c.Gateways, c.DNS = l.Routers, l.DNS
	if l.Name != "" {
		c.Hosts = append(c.Hosts, guestnet.Host{Addr: l.Addr.Addr(), Names: []string{l.Name}})
	}
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

// ofVNIC says whether a lease is of a vnic's network, which names its guests by their addresses.
func ofVNIC(l dhcp.Lease) bool { return l.Name == portName+strconv.Itoa(int(l.Addr.Addr().As4()[3])-1) }

// identity says which guest of a `vnic serve` this is, by its address. How many guests there are is not known here.
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

// interfaces waits for network interfaces of a driver, and gives them in the order of their PCI addresses.
func interfaces(ctx context.Context, root, driver string, limit time.Duration) ([]string, error) {
	for end := time.Now().Add(limit); ; { // sysfs sends no events
		links, err := filepath.Glob(filepath.Join(root, "sys/class/net/*/device/driver"))
		if err != nil {
			return nil, err
		}
		type found struct{ name, place string }
		var list []found
		for _, l := range links {
			to, err := os.Readlink(l)
			place, perr := filepath.EvalSymlinks(filepath.Dir(l))
			if err == nil && perr == nil && filepath.Base(to) == driver {
				list = append(list, found{filepath.Base(filepath.Dir(filepath.Dir(l))), place})
			}
		}
		if len(list) > 0 {
			slices.SortFunc(list, func(a, b found) int { return cmp.Compare(a.place, b.place) })
			var names []string
			for _, f := range list {
				names = append(names, f.name)
			}
			return names, nil
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

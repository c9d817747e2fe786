// Package rtnl changes and watches network interfaces, with addresses of net/netip (rtnetlink(7)).
//
// Calls open their sockets in the network namespace of the calling thread. Errors of the kernel are or wrap a
// syscall.Errno.
package rtnl

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// AddAddr adds an address to a link; EEXIST: the link has it. Without dad, an IPv6 address needs no duplicate address
// detection; with dad it is tentative until the detection has ended (RFC 4862, 5.4). dad has no effect on IPv4.
func AddAddr(l netlink.Link, p netip.Prefix, dad bool) error {
	a := address(p)
	if p.Addr().Is6() && !dad {
		a.Flags = unix.IFA_F_NODAD
	}
	return netlink.AddrAdd(l, a)
}

// RemoveAddr removes an address from a link; EADDRNOTAVAIL: the link does not have it.
func RemoveAddr(l netlink.Link, p netip.Prefix) error { return netlink.AddrDel(l, address(p)) }

func address(p netip.Prefix) *netlink.Addr {
	return &netlink.Addr{IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}}
}

// AddDefaultRoute adds a default route for the gateway's family over a link by the gateway, with flags RTNH_F_*;
// EEXIST: there is one with the same metric.
func AddDefaultRoute(l netlink.Link, gateway netip.Addr, flags int) error {
	return netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Gw: gateway.AsSlice(), Flags: flags})
}

// BringUp sets the link's MTU (0: unchanged), brings the link up, and adds addresses without duplicate address
// detection. It skips addresses that the link has, and, if ignore is not nil, addresses for whose error ignore returns
// true. added are the addresses that BringUp has added, also after an error.
func BringUp(l netlink.Link, mtu int, addrs []netip.Prefix, ignore func(netip.Prefix, error) bool) (
	added []netip.Prefix, err error) {
	if mtu != 0 && mtu != l.Attrs().MTU {
		if err := netlink.LinkSetMTU(l, mtu); err != nil {
			return nil, fmt.Errorf("MTU %d: %w", mtu, err)
		}
	}
	if err := netlink.LinkSetUp(l); err != nil {
		return nil, fmt.Errorf("up: %w", err)
	}
	for _, p := range addrs {
		err := AddAddr(l, p, false)
		if err == nil {
			added = append(added, p)
		} else if !errors.Is(err, unix.EEXIST) && (ignore == nil || !ignore(p, err)) {
			return added, fmt.Errorf("address %v: %w", p, err)
		}
	}
	return added, nil
}

// OfDriver returns the names of the network interfaces whose device has this driver, in the order of the devices'
// paths. sys is the directory where sysfs is mounted.
func OfDriver(sys, driver string) (names []string, err error) {
	links, err := filepath.Glob(filepath.Join(sys, "class/net/*/device/driver"))
	places := map[string]string{}
	for _, l := range links {
		to, err := os.Readlink(l)
		place, perr := filepath.EvalSymlinks(filepath.Dir(l))
		if err == nil && perr == nil && filepath.Base(to) == driver {
			name := filepath.Base(filepath.Dir(filepath.Dir(l)))
			names, places[name] = append(names, name), place
		}
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Compare(places[a], places[b]) })
	return names, err
}

package guestnet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/rtnl"
)

// find waits for a link for each of c.Interfaces, at most limits.Interface times limits.Slow, and returns the links
// in the order of c.Interfaces. After that time the error is ENODEV.
func (c *Config) find(ctx context.Context) ([]netlink.Link, error) {
	var links, found []netlink.Link
	var missing string
	there, err := until(ctx, limits.Interface.Here(), func() (ok bool, err error) {
		if links, err = netlink.LinkList(); err != nil {
			return false, fmt.Errorf("network interfaces: %w", err)
		}
		found, missing = c.sort(links)
		return missing == "", nil
	})
	if err != nil || there {
		return found, err
	}
	var names []string
	for _, l := range links {
		names = append(names, l.Attrs().Name)
	}
	return nil, fmt.Errorf("no network interface %s, only %s: "+
		"its driver is not in the kernel, or its probe has failed: %w", missing, strings.Join(names, ", "), unix.ENODEV)
}

// sort returns the links with the MAC addresses of c.Interfaces, in that order, or the first MAC address without a
// link.
func (c *Config) sort(links []netlink.Link) (found []netlink.Link, missing string) {
	byMAC := map[string]netlink.Link{}
	for _, l := range links {
		byMAC[l.Attrs().HardwareAddr.String()] = l
	}
	for _, i := range c.Interfaces {
		link, ok := byMAC[i.MAC]
		if !ok {
			return nil, i.MAC
		}
		found = append(found, link)
	}
	return found, ""
}

// up sets the link's MTU (0: unchanged), brings the link up, and adds the addresses. It skips IPv6 addresses if the
// kernel has no IPv6, or IPv6 is disabled.
func (i *Interface) up(l netlink.Link) error {
	withoutDAD(l.Attrs().Name)
	_, err := rtnl.BringUp(l, i.MTU, i.Addrs, func(p netip.Prefix, err error) bool {
		return without6(p.Addr().Is6(), err)
	})
	return err
}

// withoutDAD disables duplicate address detection at an interface, so that the link-local address of the kernel is
// usable at once (Linux Documentation/networking/ip-sysctl.rst, accept_dad). It ignores errors.
func withoutDAD(name string) {
	_ = os.WriteFile(filepath.Join("/proc/sys/net/ipv6/conf", name, "accept_dad"), []byte("0"), 0)
}

// without6 reports whether err is about an IPv6 address (is6) and means that the kernel has no IPv6, or that IPv6 is
// disabled.
func without6(is6 bool, err error) bool {
	return is6 && (errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EACCES))
}

func (c *Config) routes(l netlink.Link) error {
	six, err := netlink.AddrList(l, unix.AF_INET6)
	no6 := err == nil && len(six) == 0
	for _, gw := range c.Gateways {
		if gw.Is6() && no6 {
			continue
		}
		flags := 0
		if !c.Interfaces[0].reaches(gw) {
			flags = unix.RTNH_F_ONLINK
		}
		err := rtnl.AddDefaultRoute(l, gw, flags)
		if err != nil && !errors.Is(err, unix.EEXIST) && !without6(gw.Is6(), err) {
			return fmt.Errorf("route by %v: %w", gw, err)
		}
	}
	return nil
}

// reaches reports whether a gateway's address is an IPv6 link-local one, or in a network of the interface's
// addresses.
func (i *Interface) reaches(gw netip.Addr) bool {
	return gw.IsLinkLocalUnicast() && gw.Is6() ||
		slices.ContainsFunc(i.Addrs, func(p netip.Prefix) bool { return p.Contains(gw) })
}

var pciName = regexp.MustCompile(`[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\b`)

// pciAddress returns the address of the PCI device nearest to an interface, the last one in the path of its device
// in sysfs; "": none.
func pciAddress(root, name string) string {
	path, err := filepath.EvalSymlinks(filepath.Join(root, "sys/class/net", name, "device"))
	if err != nil {
		return ""
	}
	all := pciName.FindAllString(path, -1)
	if len(all) == 0 {
		return ""
	}
	return all[len(all)-1]
}

// leave unbinds an interface's PCI device from its driver in the kernel; ENODEV: it has no PCI device.
func leave(root string, f Found) error {
	if f.PCI == "" {
		return fmt.Errorf("no PCI device: %w", unix.ENODEV)
	}
	path := filepath.Join(root, "sys/bus/pci/devices", f.PCI, "driver/unbind")
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err == nil {
		_, err = file.WriteString(f.PCI)
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		return fmt.Errorf("taking %s from its driver: %w", f.PCI, err)
	}
	return nil
}

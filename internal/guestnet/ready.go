package guestnet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/rtnl"
)

// ready waits until the links of the interfaces without Leave are up and their addresses can be used; at a link
// without any IPv6 address it waits for the IPv4 ones. After patience it describes what is missing; "": nothing.
func (c *Config) ready(ctx context.Context, links []netlink.Link, patience time.Duration) (missing string, err error) {
	good, err := until(ctx, patience, func() (ok bool, err error) {
		missing, err = c.missing(links)
		return missing == "", err
	})
	if err != nil || good {
		return "", err
	}
	return fmt.Sprintf("%s, %v after it was to be up", missing, patience), nil
}

// until calls f now, after changes of links and addresses, and at once after ErrDumpInterrupted, until f returns true
// or another error, which until returns. It returns false without an error after limit, and an error if ctx ends or
// changes cannot be watched.
func until(ctx context.Context, limit time.Duration, f func() (bool, error)) (bool, error) {
	changes, stop, err := rtnl.Watch()
	if err != nil {
		return false, fmt.Errorf("network interfaces: %w", err)
	}
	defer stop()
	late := time.NewTimer(limit)
	defer late.Stop()
	now := make(chan struct{})
	close(now)
	for {
		ok, err := f()
		var again <-chan struct{}
		if errors.Is(err, netlink.ErrDumpInterrupted) {
			again = now
		} else if ok || err != nil {
			return ok, err
		}
		select {
		case <-again:
		case _, ok := <-changes:
			if !ok {
				return false, errors.New("network interfaces: netlink has ended")
			}
		case <-late.C:
			return false, nil
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

func (c *Config) missing(links []netlink.Link) (string, error) {
	var lacks []string
	for k, l := range links {
		if c.Interfaces[k].Leave {
			continue
		}
		l, err := netlink.LinkByIndex(l.Attrs().Index)
		if err != nil {
			return "", fmt.Errorf("%s: %w", links[k].Attrs().Name, err)
		}
		what, err := c.Interfaces[k].lacks(l)
		if err != nil {
			return "", fmt.Errorf("%s: %w", l.Attrs().Name, err)
		}
		for _, w := range what {
			lacks = append(lacks, l.Attrs().Name+": "+w)
		}
	}
	return strings.Join(lacks, ", "), nil
}

// lacks describes what one interface lacks. A link whose driver does not report a state is in state unknown, and may
// be usable (Linux Documentation/networking/operstates.rst).
func (i *Interface) lacks(l netlink.Link) (what []string, err error) {
	if s := l.Attrs().OperState; s != netlink.OperUp && s != netlink.OperUnknown || l.Attrs().RawFlags&unix.IFF_UP == 0 {
		what = append(what, fmt.Sprintf("the link is %v", s))
	}
	addrs, err := netlink.AddrList(l, unix.AF_UNSPEC)
	if err != nil {
		return nil, err
	}
	has6 := false
	have := map[netip.Addr]bool{}
	linkLocal := !makesLinkLocal(l.Attrs().Name)
	for _, a := range addrs {
		addr, _ := netip.AddrFromSlice(a.IP)
		addr = addr.Unmap()
		have[addr] = true
		has6, linkLocal = has6 || addr.Is6(), linkLocal || addr.Is6() && addr.IsLinkLocalUnicast()
		switch {
		case a.Flags&unix.IFA_F_DADFAILED != 0:
			what = append(what, fmt.Sprintf("address %v is another's too", addr))
		case a.Flags&unix.IFA_F_TENTATIVE != 0:
			what = append(what, fmt.Sprintf("address %v is tentative", addr))
		}
	}
	if has6 && !linkLocal {
		what = append(what, "no link-local address")
	}
	for _, p := range i.Addrs {
		if !have[p.Addr()] && (p.Addr().Is4() || has6) {
			what = append(what, fmt.Sprintf("no address %v", p.Addr()))
		}
	}
	return what, nil
}

// makesLinkLocal reports whether addr_gen_mode of an interface lets the kernel make a link-local address; false also
// if it cannot be read, as without IPv6.
func makesLinkLocal(name string) bool {
	b, err := os.ReadFile(filepath.Join("/proc/sys/net/ipv6/conf", name, "addr_gen_mode"))
	return err == nil && strings.TrimSpace(string(b)) != "1" // IN6_ADDR_GEN_MODE_NONE
}

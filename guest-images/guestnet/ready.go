package guestnet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// readyTime is how long interfaces may take from up until they can be used. A driver hears of its
// link by an interrupt, which on a busy machine is late.
const readyTime = 15 * time.Second

// ready waits until interfaces that are up can be used: their links are up too, and all of their
// addresses are good to bind and to send from. It gives what is missing at the end of its patience;
// "" = nothing.
func (c *Config) ready(ctx context.Context, links []netlink.Link, patience time.Duration) (missing string, err error) {
	good, err := until(ctx, patience, func() (ok bool, err error) {
		for {
			missing, err = c.missing(links)
			if !errors.Is(err, netlink.ErrDumpInterrupted) { // by a change: which is to be seen
				return missing == "", err
			}
		}
	})
	if err != nil || good {
		return "", err
	}
	return fmt.Sprintf("%s, %v after it was to be up", missing, patience), nil
}

// until calls f now, and after each change of links and addresses, until it gives true or an error.
// It gives false when limit has passed.
func until(ctx context.Context, limit time.Duration, f func() (bool, error)) (bool, error) {
	changes, stop, err := changes()
	if err != nil {
		return false, err
	}
	defer stop()
	late := time.NewTimer(limit)
	defer late.Stop()
	for {
		if ok, err := f(); ok || err != nil {
			return ok, err
		}
		select {
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

// changes tells of changes of links and addresses, from now on: one for any number of them that
// were not received yet. It is closed when there will be no more.
func changes() (c <-chan struct{}, stop func(), err error) {
	links, addrs, done := make(chan netlink.LinkUpdate), make(chan netlink.AddrUpdate), make(chan struct{})
	if err := netlink.LinkSubscribeWithOptions(links, done, netlink.LinkSubscribeOptions{}); err != nil {
		return nil, nil, fmt.Errorf("network interfaces: %w", err)
	}
	if err := netlink.AddrSubscribeWithOptions(addrs, done, netlink.AddrSubscribeOptions{}); err != nil {
		close(done)
		go drain(links)
		return nil, nil, fmt.Errorf("network addresses: %w", err)
	}
	out := make(chan struct{}, 1)
	go func() {
		defer close(out)
		defer func() { go drain(links); go drain(addrs) }()
		for {
			ok := false
			select {
			case _, ok = <-links:
			case _, ok = <-addrs:
			}
			if !ok {
				return
			}
			select {
			case out <- struct{}{}:
			default:
			}
		}
	}()
	return out, func() { close(done) }, nil
}

// drain has a subscription end, which may be about to send.
func drain[T any](c <-chan T) {
	for range c {
	}
}

// missing says what interfaces lack.
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

// lacks is what one lacks. The operational state of a link without carrier detection is unknown, and good
// (Linux Documentation/networking/operstates.rst).
func (i *Interface) lacks(l netlink.Link) (what []string, err error) {
	if s := l.Attrs().OperState; s != netlink.OperUp && s != netlink.OperUnknown || l.Attrs().Flags&net.FlagUp == 0 {
		what = append(what, fmt.Sprintf("the link is %v", s))
	}
	addrs, err := netlink.AddrList(l, netlink.FAMILY_ALL)
	if err != nil {
		return nil, err
	}
	has6 := false // a kernel without IPv6 has refused all of its addresses
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

// makesLinkLocal says whether the kernel gives an interface a link-local address, once it has a link.
func makesLinkLocal(name string) bool {
	b, err := os.ReadFile(filepath.Join("/proc/sys/net/ipv6/conf", name, "addr_gen_mode"))
	return err == nil && strings.TrimSpace(string(b)) != "1" // IN6_ADDR_GEN_MODE_NONE
}

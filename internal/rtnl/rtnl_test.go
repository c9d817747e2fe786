package rtnl

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func pair(t *testing.T) (a, b netlink.Link) {
	t.Helper()
	testkit.OK(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "a"}, PeerName: "b"}))
	return testkit.Must(netlink.LinkByName("a"))(t), testkit.Must(netlink.LinkByName("b"))(t)
}

// addrs returns a link's addresses, with their broadcast addresses. It leaves out IPv6 addresses without
// IFA_F_NODAD: the kernel itself has added these.
func addrs(t *testing.T, l netlink.Link) (list []string) {
	t.Helper()
	for _, a := range testkit.Must(netlink.AddrList(l, netlink.FAMILY_ALL))(t) {
		if s := a.IPNet.String(); a.Broadcast != nil {
			list = append(list, s+" to "+a.Broadcast.String())
		} else if a.Flags&unix.IFA_F_NODAD != 0 || a.IP.To4() != nil {
			list = append(list, s)
		}
	}
	return list
}

func TestBringUp(t *testing.T) {
	if !testkit.InNamespace(t) {
		return
	}
	a, b := pair(t)
	testkit.OK(t, netlink.LinkSetUp(b))
	p4, p6 := netip.MustParsePrefix("10.1.2.3/24"), netip.MustParsePrefix("fd00::7/64")
	both := []netip.Prefix{p4, netip.MustParsePrefix("10.3.0.1/31"), p6}
	added, err := BringUp(a, 4000, both, nil)
	if d := cmp.Diff(both, added, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); err != nil || d != "" {
		t.Errorf("%v: %s", err, d)
	}
	now := testkit.Must(netlink.LinkByName("a"))(t).Attrs()
	if now.MTU != 4000 || now.RawFlags&unix.IFF_UP == 0 {
		t.Errorf("MTU %d, flags %#x", now.MTU, now.RawFlags)
	}
	if d := cmp.Diff([]string{"10.1.2.3/24 to 10.1.2.255", "10.3.0.1/31", "fd00::7/64"}, addrs(t, a)); d != "" {
		t.Error(d)
	}
	added, err = BringUp(a, 0, both, nil)
	testkit.OK(t, err)
	testkit.Equal(t, "added", len(added), 0)
	bad := []netip.Prefix{netip.MustParsePrefix("10.1.2.4/24"), {}}
	added, err = BringUp(a, 0, bad, nil)
	if err == nil || len(added) != 1 {
		t.Errorf("%v, %v", added, err)
	}
	testkit.OK(t, testkit.Err(BringUp(a, 0, bad, func(p netip.Prefix, _ error) bool { return !p.IsValid() })))
	testkit.ErrorIs(t, testkit.Err(BringUp(a, 1, nil, nil)), unix.EINVAL)
}

func TestErrorsAreTheKernels(t *testing.T) {
	if !testkit.InNamespace(t) {
		return
	}
	a, b := pair(t)
	testkit.OK(t, netlink.LinkSetUp(a))
	testkit.OK(t, netlink.LinkSetUp(b))
	p4, p6 := netip.MustParsePrefix("10.0.0.1/24"), netip.MustParsePrefix("fd00::1/64")
	none := &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: 4711}}
	testkit.ErrorIs(t, AddAddr(none, p4, false), unix.ENODEV)
	testkit.ErrorIs(t, AddDefaultRoute(none, p4.Addr(), unix.RTNH_F_ONLINK), unix.ENODEV)
	for _, p := range []netip.Prefix{p4, p6} {
		testkit.ErrorIs(t, RemoveAddr(a, p), unix.EADDRNOTAVAIL)
		testkit.OK(t, AddAddr(a, p, false))
		testkit.ErrorIs(t, AddAddr(a, p, false), unix.EEXIST)
	}
	for _, c := range []struct {
		gateway string
		flags   int
		refused error
	}{
		{"10.0.0.2", 0, nil}, {"192.0.2.1", 0, unix.ENETUNREACH}, {"192.0.2.1", unix.RTNH_F_ONLINK, unix.EEXIST},
		{"fd00::2", 0, nil}, {"fd02::1", 0, unix.EHOSTUNREACH}, {"fe80::1", 0, unix.EEXIST},
	} {
		testkit.ErrorIs(t, AddDefaultRoute(a, netip.MustParseAddr(c.gateway), c.flags), c.refused, c.gateway)
	}
	testkit.OK(t, RemoveAddr(a, p4))
	testkit.OK(t, AddAddr(a, p4, false)) // with the address the kernel has removed the route
	testkit.OK(t, AddDefaultRoute(a, netip.MustParseAddr("192.0.2.1"), unix.RTNH_F_ONLINK))
}

// Interfaces of other drivers, and interfaces without a device, as lo, are left out.
func TestInterfacesOfADriverAreInTheOrderOfTheirDevices(t *testing.T) {
	sys := t.TempDir()
	for name, device := range map[string]string{"a": "pci/05/net", "b": "pci/03/net", "c": "pci/04/other", "lo": ""} {
		class := filepath.Join(sys, "class/net", name)
		testkit.OK(t, os.MkdirAll(class, 0o755))
		if place, driver := filepath.Split(filepath.Join(sys, device)); device != "" {
			testkit.OK(t, errors.Join(os.MkdirAll(place, 0o755), os.Symlink("/drivers/"+driver, place+"driver"),
				os.Symlink(place, filepath.Join(class, "device"))))
		}
	}
	for driver, want := range map[string]string{"net": "[b a]", "other": "[c]", "none": "[]"} {
		testkit.Equal(t, driver, fmt.Sprint(testkit.Must(OfDriver(sys, driver))(t)), want)
	}
	testkit.ErrorIs(t, testkit.Err(OfDriver("[", "net")), filepath.ErrBadPattern)
}

func TestWatchReportsChanges(t *testing.T) {
	if !testkit.InNamespace(t) {
		return
	}
	a, b := pair(t)
	changes, stop, err := Watch()
	testkit.OK(t, err)
	p4, p6 := netip.MustParsePrefix("10.0.0.1/24"), netip.MustParsePrefix("fd00::1/64")
	quiet := func() { // drops the values for earlier changes that have come
		for {
			select {
			case <-changes:
			default:
				return
			}
		}
	}
	for _, change := range []func() error{
		func() error { return netlink.LinkSetMTU(a, 2000) },
		func() error { return AddAddr(a, p4, false) },
		func() error { return RemoveAddr(a, p4) },
		func() error { return AddAddr(a, p6, false) },
		func() error { return netlink.LinkSetUp(b) },
	} {
		quiet()
		testkit.OK(t, change())
		<-changes
	}
	stop()
	if _, ok := <-changes; ok {
		t.Error("a change after stop")
	}
	stop()
}

func TestWatchOutlivesMoreChangesThanTheSocketHolds(t *testing.T) {
	if !testkit.InNamespace(t) {
		return
	}
	a, _ := pair(t)
	c := testkit.Must(subscribe())(t)
	testkit.OK(t, c.SetReadBuffer(1)) // the kernel's minimum
	for mtu := range 100 {
		testkit.OK(t, netlink.LinkSetMTU(a, 2000+mtu))
	}
	_, err := c.Receive()
	testkit.ErrorIs(t, err, unix.ENOBUFS)
	for mtu := range 100 {
		testkit.OK(t, netlink.LinkSetMTU(a, 3000+mtu))
	}
	changes, stop := watch(c)
	defer stop()
	<-changes
	mtu := 4000
	testkit.Eventually(t, "a change after these", func() bool {
		testkit.OK(t, netlink.LinkSetMTU(a, mtu))
		mtu++
		_, ok := <-changes
		return ok
	})
}

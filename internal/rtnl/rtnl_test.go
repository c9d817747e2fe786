package rtnl

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// pair adds two connected links, and returns their indices.
func pair(t *testing.T, a, b string) (int, int) {
	t.Helper()
	testkit.OK(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: a}, PeerName: b}))
	return reference(t, a).Index, reference(t, b).Index
}

func reference(t *testing.T, name string) *netlink.LinkAttrs {
	t.Helper()
	return testkit.Must(netlink.LinkByName(name))(t).Attrs()
}

// same compares a link with the reference's.
func same(t *testing.T, got Link, a *netlink.LinkAttrs) {
	t.Helper()
	want := Link{
		Index: a.Index, Name: a.Name, MTU: a.MTU, Flags: a.RawFlags, OperState: OperState(a.OperState),
		HardwareAddr: a.HardwareAddr,
		Stats:        Stats{a.Statistics.RxDropped, a.Statistics.TxDropped, a.Statistics.RxMissedErrors},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("link %s: -reference +ours\n%s", a.Name, d)
	}
	if got.OperState.String() != a.OperState.String() {
		t.Errorf("link %s is %v, by the reference %v", a.Name, got.OperState, a.OperState)
	}
}

func compareLinks(t *testing.T) {
	t.Helper()
	all := testkit.Must(netlink.LinkList())(t)
	links := testkit.Must(Links())(t)
	testkit.Equal(t, "number of links", len(links), len(all))
	for i, l := range links {
		a := all[i].Attrs()
		same(t, l, a)
		same(t, testkit.Must(LinkByName(a.Name))(t), a)
		same(t, testkit.Must(LinkByIndex(a.Index))(t), a)
	}
}

func TestLinksAreTheReferences(t *testing.T) {
	if !testkit.InNamespace(t) {
		return
	}
	// Without IPv6 the links carry only the test's frames, so that their counters are known.
	_ = os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0)
	a, b := pair(t, "a", "b")
	compareLinks(t)
	testkit.OK(t, SetMTU(a, 4000))
	testkit.Equal(t, "MTU", reference(t, "a").MTU, 4000)
	testkit.OK(t, SetUp(a)) // the peer of a is still down
	compareLinks(t)
	testkit.OK(t, SetUp(b))
	testkit.OK(t, SetUp(b)) // changes nothing, because b is up
	lo := testkit.Must(LinkByName("lo"))(t)
	testkit.OK(t, SetUp(lo.Index))
	for _, name := range []string{"lo", "a", "b"} {
		if reference(t, name).Flags&net.FlagUp == 0 {
			t.Errorf("%s is down", name)
		}
	}
	testkit.Eventually(t, "a link", func() bool { return testkit.Must(LinkByIndex(a))(t).OperState == OperUp })
	compareLinks(t)
	if lo.HardwareAddr != nil {
		t.Errorf("lo has %v", lo.HardwareAddr)
	}
	// A link whose peer is down drops frames.
	testkit.OK(t, netlink.LinkSetDown(testkit.Must(netlink.LinkByName("b"))(t)))
	s := testkit.Must(unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0))(t)
	defer func() { _ = unix.Close(s) }()
	_ = unix.Sendto(s, make([]byte, 60), 0, &unix.SockaddrLinklayer{Ifindex: a, Protocol: 0x0008, Halen: 6})
	if testkit.Must(LinkByIndex(a))(t).Stats.TxDropped == 0 {
		t.Error("no frame was dropped")
	}
	compareLinks(t)
	alt := strings.Repeat("long-name", 3)
	testkit.OK(t, netlink.LinkAddAltName(testkit.Must(netlink.LinkByName("a"))(t), alt))
	same(t, testkit.Must(LinkByName(alt))(t), reference(t, "a"))
}

func TestLinkThatDoesNotExist(t *testing.T) {
	if !testkit.InNamespace(t) {
		return
	}
	const none = 4711
	addr := netip.MustParsePrefix("10.0.0.1/24")
	a, _ := pair(t, "a", "b")
	for what, c := range map[string]struct{ err, want error }{
		"by name":          {testkit.Err(LinkByName("eth9")), unix.ENODEV},
		"by long name":     {testkit.Err(LinkByName(strings.Repeat("x", 40))), unix.ENODEV},
		"by name too long": {testkit.Err(LinkByName(strings.Repeat("x", 300))), unix.ERANGE},
		"by no name":       {testkit.Err(LinkByName("")), unix.ENODEV},
		"by index":         {testkit.Err(LinkByIndex(none)), unix.ENODEV},
		"by index below 0": {testkit.Err(LinkByIndex(-1)), unix.EINVAL},
		"up":               {SetUp(none), unix.ENODEV},
		"MTU":              {SetMTU(none, 1500), unix.ENODEV},
		"MTU too small":    {SetMTU(a, 1), unix.EINVAL},
		"add address":      {AddAddr(none, addr, false), unix.ENODEV},
		"remove address":   {RemoveAddr(none, addr), unix.ENODEV},
		"add route":        {AddDefaultRoute(none, addr.Addr(), unix.RTNH_F_ONLINK), unix.ENODEV},
		"no address":       {AddAddr(a, netip.Prefix{}, false), unix.ERANGE},
		"no gateway":       {AddDefaultRoute(a, netip.Addr{}, 0), unix.ERANGE},
	} {
		if !errors.Is(c.err, c.want) {
			t.Errorf("%s: %v, should be %v", what, c.err, c.want)
		}
	}
	testkit.Equal(t, "text", testkit.Err(LinkByName("eth9")).Error(), testkit.Err(netlink.LinkByName("eth9")).Error())
	testkit.Equal(t, "text", testkit.Err(LinkByIndex(none)).Error(), testkit.Err(netlink.LinkByIndex(none)).Error())
	if addrs, err := Addrs(none, unix.AF_UNSPEC); err != nil || len(addrs) != 0 {
		t.Errorf("%v, %v", addrs, err)
	}
	compareLinks(t)
}

// addrs lists a link's addresses by the reference library, with all properties that this package sets.
func addrs(t *testing.T, name string, family int) (ours []Addr, all []string) {
	t.Helper()
	for _, a := range testkit.Must(netlink.AddrList(testkit.Must(netlink.LinkByName(name))(t), family))(t) {
		ip, _ := netip.AddrFromSlice(a.IP)
		ours = append(ours, Addr{ip.Unmap(), uint32(a.Flags)})
		if !ip.IsLinkLocalUnicast() {
			all = append(all, fmt.Sprint(a.IPNet, a.Peer, a.Broadcast, a.Scope, a.Flags, a.ValidLft, a.PreferedLft))
		}
	}
	return ours, all
}

func equal(a, b Addr) bool { return a == b }

func TestAddressesAreTheReferences(t *testing.T) {
	if !testkit.InNamespace(t) {
		return
	}
	a, _ := pair(t, "a", "b")
	c, _ := pair(t, "c", "d")
	theirs := testkit.Must(netlink.LinkByName("c"))(t)
	for i, text := range []string{"10.1.2.3/24", "10.1.2.4/24", "10.2.0.1/16", "10.3.0.1/31", "10.4.0.1/32", "0.0.0.1/0",
		"169.254.1.1/16", "fd00::7/64", "fd01::7/128", "fe80::1234/64"} {
		p := netip.MustParsePrefix(text)
		var flags int
		if p.Addr().Is6() {
			flags = unix.IFA_F_NODAD
		}
		testkit.OK(t, AddAddr(a, p, false))
		ref := &netlink.Addr{Flags: flags, IPNet: &net.IPNet{IP: p.Addr().AsSlice(),
			Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}}
		testkit.OK(t, netlink.AddrAdd(theirs, ref))
		testkit.ErrorIs(t, AddAddr(a, p, false), unix.EEXIST, text)
		if i == 1 {
			testkit.OK(t, RemoveAddr(a, p))
			testkit.OK(t, netlink.AddrDel(theirs, ref))
			testkit.ErrorIs(t, RemoveAddr(a, p), unix.EADDRNOTAVAIL, text)
		}
	}
	testkit.OK(t, netlink.AddrAdd(testkit.Must(netlink.LinkByName("a"))(t), &netlink.Addr{
		IPNet: netlink.NewIPNet(net.IPv4(10, 9, 0, 1)), Peer: netlink.NewIPNet(net.IPv4(10, 9, 0, 2))}))
	_, ours := addrs(t, "a", netlink.FAMILY_ALL)
	_, want := addrs(t, "c", netlink.FAMILY_ALL)
	ours = slices.DeleteFunc(ours, func(s string) bool { return strings.HasPrefix(s, "10.9.0.1/") })
	if d := cmp.Diff(want, ours); d != "" {
		t.Errorf("-the reference's +ours\n%s", d)
	}
	for _, f := range []uint8{unix.AF_UNSPEC, unix.AF_INET, unix.AF_INET6} {
		for index, name := range map[int]string{a: "a", c: "c"} {
			want, _ := addrs(t, name, int(f))
			if d := cmp.Diff(want, testkit.Must(Addrs(index, f))(t), cmp.Comparer(equal)); d != "" {
				t.Errorf("family %d: -reference +ours\n%s", f, d)
			}
		}
	}
}

func TestRoutesAreTheReferences(t *testing.T) {
	if !testkit.InNamespace(t) {
		return
	}
	a, b := pair(t, "a", "b")
	testkit.OK(t, SetUp(a))
	testkit.OK(t, SetUp(b))
	link := testkit.Must(netlink.LinkByIndex(a))(t)
	testkit.OK(t, AddAddr(a, netip.MustParsePrefix("10.0.0.1/24"), false))
	testkit.OK(t, AddAddr(a, netip.MustParsePrefix("fd00::1/64"), false))
	for _, c := range []struct {
		gateway string
		flags   uint32
		refused error
	}{
		{"10.0.0.2", 0, nil}, {"192.0.2.1", unix.RTNH_F_ONLINK, nil}, {"192.0.2.1", 0, unix.ENETUNREACH},
		{"fd00::2", 0, nil}, {"fd02::1", unix.RTNH_F_ONLINK, nil}, {"fd02::1", 0, unix.EHOSTUNREACH},
		{"fe80::1", 0, nil},
	} {
		gw := netip.MustParseAddr(c.gateway)
		ref := &netlink.Route{LinkIndex: a, Gw: gw.AsSlice(), Flags: int(c.flags)}
		ours, theirs := AddDefaultRoute(a, gw, c.flags), error(nil)
		if !errors.Is(ours, c.refused) {
			t.Errorf("%+v: %v", c, ours)
		}
		if c.refused != nil {
			theirs = netlink.RouteAdd(ref)
			testkit.Equal(t, "error", ours.Error(), theirs.Error())
			continue
		}
		testkit.ErrorIs(t, AddDefaultRoute(a, gw, c.flags), unix.EEXIST)
		family := map[bool]int{true: netlink.FAMILY_V4, false: netlink.FAMILY_V6}[gw.Is4()]
		got := testkit.Must(netlink.RouteList(link, family))(t)
		testkit.OK(t, netlink.RouteDel(ref))
		testkit.OK(t, netlink.RouteAdd(ref))
		want := testkit.Must(netlink.RouteList(link, family))(t)
		if d := cmp.Diff(fmt.Sprint(want), fmt.Sprint(got)); d != "" {
			t.Errorf("%+v: -the reference's +ours\n%s", c, d)
		}
		testkit.OK(t, netlink.RouteDel(ref))
	}
}

// A dump fails with ErrInterrupted if a link appears between two of its parts.
func TestChangeInterruptsADump(t *testing.T) {
	if !testkit.InNamespace(t) {
		return
	}
	for i := range 40 { // a dump of about 100 KiB
		pair(t, fmt.Sprint("a", i), fmt.Sprint("b", i))
	}
	list := func(each func()) error {
		return dump(unix.RTM_GETLINK, unix.RTM_NEWLINK, linkHeader(0, 0, 0), func([]byte) error { each(); return nil })
	}
	n := 0
	testkit.OK(t, list(func() { n++ }))
	testkit.Equal(t, "links", n, 81)
	once := false
	testkit.ErrorIs(t, list(func() {
		if !once {
			pair(t, "x", "y")
			once = true
		}
	}), ErrInterrupted)
	enough := errors.New("enough")
	testkit.ErrorIs(t, dump(unix.RTM_GETLINK, unix.RTM_NEWLINK, linkHeader(0, 0, 0), func([]byte) error { return enough }),
		enough)
	compareLinks(t)
}

func TestWatchReportsChanges(t *testing.T) {
	if !testkit.InNamespace(t) {
		return
	}
	a, b := pair(t, "a", "b")
	changes, stop, err := Watch()
	testkit.OK(t, err)
	p4, p6 := netip.MustParsePrefix("10.0.0.1/24"), netip.MustParsePrefix("fd00::1/64")
	quiet := func() { // the kernel sends a change's events before its acknowledgement
		for {
			select {
			case <-changes:
			default:
				return
			}
		}
	}
	for _, change := range []func() error{
		func() error { return SetMTU(a, 2000) },
		func() error { return AddAddr(a, p4, false) },
		func() error { return RemoveAddr(a, p4) },
		func() error { return AddAddr(a, p6, false) },
		func() error { return SetUp(b) },
	} {
		quiet()
		testkit.OK(t, change())
		<-changes
	}
	stop()
	if _, ok := <-changes; ok {
		t.Error("a change after stop")
	}
	stop() // a second stop does nothing
}

func TestWatchOutlivesMoreChangesThanTheSocketHolds(t *testing.T) {
	if !testkit.InNamespace(t) {
		return
	}
	a, _ := pair(t, "a", "b")
	c := testkit.Must(subscribe())(t)
	testkit.OK(t, c.SetReadBuffer(1)) // the kernel's minimum
	for mtu := range 100 {
		testkit.OK(t, SetMTU(a, 2000+mtu))
	}
	_, err := c.Receive()
	testkit.ErrorIs(t, err, unix.ENOBUFS)
	for mtu := range 100 {
		testkit.OK(t, SetMTU(a, 3000+mtu))
	}
	changes, stop := watch(c)
	defer stop()
	<-changes
	mtu := 4000
	testkit.Eventually(t, "a change after these", func() bool {
		testkit.OK(t, SetMTU(a, mtu))
		mtu++
		_, ok := <-changes
		return ok
	})
}

package guestnet

import (
	"context"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"vnic.dev/vnic/internal/rtnl"
	"vnic.dev/vnic/internal/testkit"
)

// cable makes a veth pair, whose ends have carrier while both are up. It skips the test if it must not make one.
func cable(t *testing.T) (ours, peers netlink.Link) {
	t.Helper()
	v := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "v0"}, PeerName: "v1"}
	if err := netlink.LinkAdd(v); err != nil {
		t.Skipf("no interfaces to play with: %v", err)
	}
	for i, name := range []string{"v0", "v1"} {
		l := testkit.Must(netlink.LinkByName(name))(t)
		if i == 0 {
			ours = l
		} else {
			peers = l
		}
	}
	return ours, peers
}

func TestLinkThatIsLateIsWaitedFor(t *testing.T) {
	alone(t)
	ignore := goleak.IgnoreCurrent()
	ours, peers := cable(t)
	c := Config{Interfaces: []Interface{{MAC: ours.Attrs().HardwareAddr.String(),
		Addrs: []netip.Prefix{netip.MustParsePrefix("10.9.8.7/24"), netip.MustParsePrefix("fd00::7/64")}}}}
	testkit.OK(t, c.Interfaces[0].up(ours))
	links := []netlink.Link{ours}
	missing, err := c.ready(t.Context(), links, time.Millisecond)
	if err != nil || !strings.Contains(missing, "v0: the link is ") ||
		!strings.Contains(missing, " after it was to be up") {
		t.Fatalf("without a link: %q, %v", missing, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.ready(ctx, links, time.Hour); err != context.Canceled {
		t.Errorf("%v", err)
	}
	events, stop, err := rtnl.Watch()
	testkit.OK(t, err)
	testkit.OK(t, netlink.LinkSetUp(peers))
	if _, ok := <-events; !ok {
		t.Error("no event")
	}
	stop()
	if missing, err = c.ready(t.Context(), links, time.Minute); missing != "" || err != nil {
		t.Errorf("with a link: %q, %v", missing, err)
	}
	l, err := netlink.LinkByName("v0")
	if err != nil || l.Attrs().OperState != netlink.OperUp {
		t.Errorf("%v, %v", l.Attrs().OperState, err)
	}
	for range events { // stop has closed the channel
	}
	goleak.VerifyNone(t, ignore)
}

// ready reports a tentative address as missing after its patience, and else waits until the address can be bound.
func TestTentativeAddressIsWaitedFor(t *testing.T) {
	alone(t)
	if _, err := os.Stat("/proc/sys/net/ipv6"); err != nil {
		t.Skip("no IPv6")
	}
	ours, peers := cable(t)
	for _, l := range []netlink.Link{ours, peers} {
		testkit.OK(t, netlink.LinkSetUp(l))
	}
	a := netip.MustParsePrefix("fd00::7/64")
	c := Config{Interfaces: []Interface{{MAC: ours.Attrs().HardwareAddr.String(),
		Addrs: []netip.Prefix{netip.MustParsePrefix("fd00::7/64")}}}}
	links := []netlink.Link{ours}
	testkit.Eventually(t, "an address that is tentative", func() bool {
		_ = rtnl.RemoveAddr(ours, a)
		testkit.OK(t, rtnl.AddAddr(ours, a, true))
		missing := testkit.Must(c.ready(t.Context(), links, 0))(t)
		return strings.Contains(missing, "address fd00::7 is tentative")
	})
	if missing, err := c.ready(t.Context(), links, time.Minute); missing != "" || err != nil {
		t.Errorf("%q, %v", missing, err)
	}
	s := testkit.Must(unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))(t)
	defer func() { _ = unix.Close(s) }()
	testkit.OK(t, unix.Bind(s, &unix.SockaddrInet6{Addr: [16]byte{0: 0xfd, 15: 7}}))
	c.Interfaces[0].Addrs = append(c.Interfaces[0].Addrs, netip.MustParsePrefix("10.9.8.7/24"))
	if missing, err := c.ready(t.Context(), links, 0); err != nil ||
		!strings.Contains(missing, "v0: no address 10.9.8.7") {
		t.Errorf("%q, %v", missing, err)
	}
}

func TestChangesWithoutAnEndHoldNobodyUp(t *testing.T) {
	good, err := until(t.Context(), time.Millisecond, func() (bool, error) { return false, netlink.ErrDumpInterrupted })
	if good || err != nil {
		t.Errorf("%v, %v", good, err)
	}
	n := 0
	good, err = until(t.Context(), time.Minute, func() (bool, error) {
		if n++; n < 3 {
			return false, netlink.ErrDumpInterrupted
		}
		return true, nil
	})
	if !good || err != nil {
		t.Errorf("%v, %v", good, err)
	}
}

package guestnet

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"vnic.dev/vnic/internal/testkit"
)

// alone locks the test's goroutine to its thread, and gives the thread a new network namespace, or skips the test.
func alone(t *testing.T) {
	t.Helper()
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skipf("no network namespace of our own: %v", err)
	}
}

func dummy(t *testing.T, name, mac string) {
	t.Helper()
	hw, err := net.ParseMAC(mac)
	testkit.OK(t, err)
	a := netlink.LinkAttrs{Name: name, HardwareAddr: hw}
	err = netlink.LinkAdd(&netlink.Dummy{LinkAttrs: a})
	if errors.Is(err, unix.EOPNOTSUPP) { // the module dummy is missing: use one end of a veth pair
		peer := name + "-peer"
		if err = netlink.LinkAdd(&netlink.Veth{LinkAttrs: a, PeerName: peer}); err == nil {
			var l netlink.Link
			if l, err = netlink.LinkByName(peer); err == nil {
				err = netlink.LinkSetUp(l)
			}
		}
	}
	if err != nil {
		t.Skipf("no interface to play with: %v", err)
	}
}

func TestInterfacesGetAddressesRoutesAndNames(t *testing.T) {
	alone(t)
	dummy(t, "d0", "02:00:00:00:00:01")
	dummy(t, "d1", "02:00:00:00:00:02")
	root := t.TempDir()
	c := Config{
		Interfaces: []Interface{
			{MAC: "02:00:00:00:00:02", MTU: 4000, Addrs: []netip.Prefix{netip.MustParsePrefix("10.9.8.7/24"),
				netip.MustParsePrefix("fd00::7/64")}},
			{MAC: "02:00:00:00:00:01"},
		},
		Gateways: []netip.Addr{netip.MustParseAddr("10.9.8.1")}, DNS: []netip.Addr{netip.MustParseAddr("10.9.8.1")},
		Hosts: []Host{{netip.MustParseAddr("10.9.8.7"), []string{"a", "b"}}},
	}
	for range 2 {
		r, err := c.apply(t.Context(), root)
		if err != nil || len(r.Interfaces) != 2 || r.Interfaces[0].Name != "d1" || r.Interfaces[1].Name != "d0" {
			t.Fatalf("%+v, %v", r, err)
		}
	}
	l, err := netlink.LinkByName("d1")
	if err != nil || l.Attrs().MTU != 4000 || l.Attrs().Flags&net.FlagUp == 0 {
		t.Errorf("%+v, %v", l, err)
	}
	addrs, err := netlink.AddrList(l, netlink.FAMILY_ALL)
	var got []string
	for _, a := range addrs {
		got = append(got, a.IPNet.String())
	}
	if text := strings.Join(got, " "); err != nil || !strings.Contains(text, "10.9.8.7/24") {
		t.Errorf("%q, %v", text, err)
	}
	routes, err := netlink.RouteList(l, netlink.FAMILY_V4)
	if err != nil || len(routes) != 2 {
		t.Errorf("%v, %v", routes, err)
	}
	for name, want := range map[string]string{
		"hosts": "127.0.0.1 localhost\n::1 localhost\n10.9.8.7 a b\n", "resolv.conf": "nameserver 10.9.8.1\n",
	} {
		if b, err := os.ReadFile(filepath.Join(root, "etc", name)); err != nil || string(b) != want {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
}

// The route through a gateway outside of the interface's subnet treats it as on the link.
func TestGatewayOutsideTheSubnetIsOnTheLink(t *testing.T) {
	alone(t)
	dummy(t, "d0", "02:00:00:00:00:01")
	for addr, gw := range map[string]string{"10.1.2.3/32": "192.0.2.1", "fd00:1::7/128": "fd00:2::1"} {
		c := Config{
			Interfaces: []Interface{{MAC: "02:00:00:00:00:01", Addrs: []netip.Prefix{netip.MustParsePrefix(addr)}}},
			Gateways:   []netip.Addr{netip.MustParseAddr(gw)},
		}
		for range 2 {
			testkit.Must(c.apply(t.Context(), t.TempDir()))(t)
		}
		routes := testkit.Must(netlink.RouteGet(net.ParseIP(map[bool]string{true: "198.51.100.1",
			false: "2001:db8::1"}[c.Gateways[0].Is4()])))(t)
		if len(routes) != 1 || !routes[0].Gw.Equal(net.ParseIP(gw)) {
			t.Errorf("%s by %s: %v", addr, gw, routes)
		}
	}
}

func TestNetworkWithoutIPv6(t *testing.T) {
	alone(t)
	dummy(t, "d0", "02:00:00:00:00:01")
	if err := os.WriteFile("/proc/sys/net/ipv6/conf/d0/disable_ipv6", []byte("1"), 0); err != nil {
		t.Skip(err)
	}
	c := Config{
		Interfaces: []Interface{{MAC: "02:00:00:00:00:01", Addrs: []netip.Prefix{netip.MustParsePrefix("10.9.8.7/24"),
			netip.MustParsePrefix("fd00::7/64")}}},
		Gateways: []netip.Addr{netip.MustParseAddr("10.9.8.1"), netip.MustParseAddr("fd00::1")},
	}
	if r, err := c.apply(t.Context(), t.TempDir()); err != nil || r.NotReady != "" {
		t.Fatalf("%+v, %v", r, err)
	}
	l := testkit.Must(netlink.LinkByName("d0"))(t)
	if routes, err := netlink.RouteList(l, netlink.FAMILY_V4); err != nil || len(routes) != 2 {
		t.Errorf("%v, %v", routes, err)
	}
}

func TestInterfaceThatIsLateIsWaitedFor(t *testing.T) {
	alone(t)
	c := Config{Interfaces: []Interface{{MAC: "02:00:00:00:00:03"}}}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := c.apply(ctx, t.TempDir()); err == nil {
		t.Error("an interface that is not there: no error")
	}
	dummy(t, "d3", "02:00:00:00:00:03")
	testkit.Must(c.apply(t.Context(), t.TempDir()))(t)
	c.Interfaces[0].Leave = true
	testkit.ErrorSays(t, testkit.Err(c.apply(t.Context(), t.TempDir())), "no PCI device")
}

func TestDeviceIsFoundAndLeft(t *testing.T) {
	root := t.TempDir()
	device := filepath.Join(root, "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/virtio3")
	driver := filepath.Join(root, "sys/bus/pci/drivers/virtio-pci")
	for _, dir := range []string{device, driver, filepath.Join(root, "sys/class/net/eth9"),
		filepath.Join(root, "sys/bus/pci/devices")} {
		testkit.OK(t, os.MkdirAll(dir, 0o755))
	}
	pci := filepath.Dir(device)
	for from, to := range map[string]string{"sys/class/net/eth9/device": device, "sys/bus/pci/devices/0000:01:00.0": pci} {
		testkit.OK(t, os.Symlink(to, filepath.Join(root, from)))
	}
	f := Found{"eth9", pciAddress(root, "eth9")}
	if f.PCI != "0000:01:00.0" || pciAddress(root, "eth8") != "" {
		t.Errorf("%+v", f)
	}
	testkit.ErrorIs(t, leave(root, f), os.ErrNotExist, "no driver")
	testkit.OK(t, os.Symlink(driver, filepath.Join(pci, "driver")))
	testkit.OK(t, os.WriteFile(filepath.Join(driver, "unbind"), nil, 0o644))
	testkit.OK(t, leave(root, f))
	testkit.Equal(t, "unbound", string(testkit.Must(os.ReadFile(filepath.Join(driver, "unbind")))(t)), f.PCI)
}

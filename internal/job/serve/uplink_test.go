package serve

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"vnic.dev/vnic/internal/broker"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/lab/labtest"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire/uplink"
)

// guestAs connects a guest to a vnic's first port. The guest has the default MAC and addresses of a lab's port i.
func guestAs(t *testing.T, p *process, i int) *labtest.Guest {
	t.Helper()
	mac := lab.MAC(i)
	return testkit.Must(labtest.Dial(p.rep.Ports[0].Socket, net.HardwareAddr(mac[:]).String(),
		[]netip.Prefix{lab.Addr4(i), lab.Addr6(i)}))(t)
}

// The guests of two sandboxed vnics in two network namespaces exchange data by TCP, over a VXLAN, then a
// stream (TCP), then a tap uplink.
//
// Invariant: uplink: Two confined vnics on two machines are one network.
func TestServesOnTwoMachinesAreOneNetwork(t *testing.T) {
	if !testkit.InNamespace(t) {
		return
	}
	testkit.LeavesNothing(t)
	there, tid := testkit.Elsewhere(t)
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = "a", 1600
	testkit.OK(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "b", PeerMTU: 1600,
		PeerNamespace: netlink.NsPid(tid)}))
	up(t, "a", "192.0.2.1/24")
	there(func() { up(t, "b", "192.0.2.2/24") })
	a, b := netip.MustParseAddrPort("192.0.2.1:4789"), netip.MustParseAddrPort("192.0.2.2:4789")
	for _, c := range []struct {
		name        string
		here, there uplink.Config
	}{
		{"vxlan", uplink.Config{VXLAN: &uplink.VXLAN{Local: a, Remote: b, VNI: 42}},
			uplink.Config{VXLAN: &uplink.VXLAN{Local: b, Remote: a, VNI: 42}}},
		{"stream", uplink.Config{Stream: &uplink.Stream{Listen: a.String()}},
			uplink.Config{Stream: &uplink.Stream{Connect: a.String()}}},
		{"tap", uplink.Config{Tap: "tap0"}, uplink.Config{Tap: "tap0"}},
	} {
		if c.here.Tap != "" {
			bridge(t, a.Addr(), b.Addr())
			there(func() { bridge(t, b.Addr(), a.Addr()) })
		}
		c.here.Name, c.there.Name = "up0", "up0"
		options := func(u uplink.Config) apartOptions {
			return apartOptions{Mode: broker.On, Paths: []string{t.TempDir() + "/0"}, Uplinks: []uplink.Config{u},
				Gateway: lab.GatewayFlags{NoGateway: true}}
		}
		p := startApart(t, options(c.here))
		var q *process
		there(func() { q = startApart(t, options(c.there)) })
		x, y := guestAs(t, p, 0), guestAs(t, q, 1)
		testkit.OK(t, errors.Join(x.Exchange(t.Context(), y, 2_000_000), y.Exchange(t.Context(), x, 10_000), x.Close(),
			y.Close()))
		for _, v := range []*process{q, p} {
			if n := v.end(); n != 0 {
				t.Errorf("%s: %d system calls were refused: %s", c.name, n, v.output)
			}
		}
		if notes := p.output.String(); strings.Contains(notes, "dropped") {
			t.Errorf("%s: %s", c.name, notes)
		}
	}
}

func up(t *testing.T, name, addr string) {
	t.Helper()
	l, err := netlink.LinkByName(name)
	if err == nil && addr != "" {
		var a *netlink.Addr
		if a, err = netlink.ParseAddr(addr); err == nil {
			err = netlink.AddrAdd(l, a)
		}
	}
	if err == nil {
		err = netlink.LinkSetUp(l)
	}
	testkit.NoError(t, err)
}

func bridge(t *testing.T, local, remote netip.Addr) {
	t.Helper()
	attrs := func(name string) netlink.LinkAttrs {
		a := netlink.NewLinkAttrs()
		a.Name, a.MTU = name, 1500
		return a
	}
	br := &netlink.Bridge{LinkAttrs: attrs("br0")}
	err := errors.Join(netlink.LinkAdd(br), netlink.LinkAdd(&netlink.Vxlan{LinkAttrs: attrs("vx0"), VxlanId: 42,
		SrcAddr: local.AsSlice(), Group: remote.AsSlice(), Port: 4789, Learning: true}), testkit.Tap("tap0"))
	testkit.NoError(t, err)
	for _, name := range []string{"vx0", "tap0", "br0"} {
		up(t, name, "")
		if l, err := netlink.LinkByName(name); err == nil && name != "br0" {
			testkit.NoError(t, netlink.LinkSetMaster(l, br))
		}
	}
}

// When a sandboxed vnic ends, the broker removes the Unix socket at which the vnic's stream uplink has listened.
func TestServeRemovesTheSocketOfItsUplink(t *testing.T) {
	testkit.LeavesNothing(t)
	dir := t.TempDir()
	path := dir + "/up"
	p := startApart(t, apartOptions{Mode: broker.On, Paths: []string{dir + "/0"},
		Uplinks: []uplink.Config{{Name: "up0", Stream: &uplink.Stream{Listen: path}}}})
	c := testkit.Must(net.Dial("unix", path))(t)
	testkit.OK(t, c.Close())
	if n := p.end(); n != 0 {
		t.Errorf("%d system calls were refused: %s", n, p.output)
	}
	if list := testkit.Must(os.ReadDir(dir))(t); len(list) != 0 {
		t.Errorf("left: %v", list)
	}
}

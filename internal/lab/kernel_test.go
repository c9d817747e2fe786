package lab_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mdlayher/genetlink"
	mdnetlink "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/lab/labtest"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire/uplink"
)

func add(t *testing.T, l netlink.Link, addrs ...string) {
	t.Helper()
	if err := netlink.LinkAdd(l); err != nil {
		t.Errorf("%s %s: %v", l.Type(), l.Attrs().Name, err)
		return
	}
	raise(t, l.Attrs().Name, addrs...)
}

func raise(t *testing.T, name string, addrs ...string) {
	t.Helper()
	l, err := netlink.LinkByName(name)
	for _, a := range addrs {
		var addr *netlink.Addr
		if err == nil {
			addr, err = netlink.ParseAddr(a)
		}
		if err == nil {
			addr.Flags = 2 // IFA_F_NODAD
			err = netlink.AddrAdd(l, addr)
		}
	}
	if err == nil {
		err = netlink.LinkSetUp(l)
	}
	testkit.NoError(t, err)
}

// completes makes the kernel complete checksums before it passes frames to a device, as ethtool -K DEVICE
// tx-checksum-ip-generic off does. Otherwise VXLAN over veth carries partial inner checksums.
func completes(t *testing.T, device string) {
	t.Helper()
	c, err := genetlink.Dial(nil)
	if err != nil {
		t.Error(err)
		return
	}
	defer c.Close()
	family, err := c.GetFamily(unix.ETHTOOL_GENL_NAME)
	testkit.NoError(t, err)
	e := mdnetlink.NewAttributeEncoder()
	e.Nested(unix.ETHTOOL_A_FEATURES_HEADER, func(e *mdnetlink.AttributeEncoder) error {
		e.String(unix.ETHTOOL_A_HEADER_DEV_NAME, device)
		return nil
	})
	e.Nested(unix.ETHTOOL_A_FEATURES_WANTED, func(e *mdnetlink.AttributeEncoder) error {
		e.Nested(unix.ETHTOOL_A_BITSET_BITS, func(e *mdnetlink.AttributeEncoder) error {
			e.Nested(unix.ETHTOOL_A_BITSET_BITS_BIT, func(e *mdnetlink.AttributeEncoder) error {
				e.String(unix.ETHTOOL_A_BITSET_BIT_NAME, "tx-checksum-ip-generic")
				return nil
			})
			return nil
		})
		return nil
	})
	b, err := e.Encode()
	if err == nil {
		_, err = c.Execute(genetlink.Message{Header: genetlink.Header{Command: unix.ETHTOOL_MSG_FEATURES_SET,
			Version: unix.ETHTOOL_GENL_VERSION}, Data: b}, family.ID, mdnetlink.Request|mdnetlink.Acknowledge)
	}
	testkit.NoError(t, err)
}

// wired makes a network namespace, and a veth pair: a, in the test's namespace, and b, in the new one, with the
// addresses in the parameters a and b. there calls f in the new namespace.
func wired(t *testing.T, mtu int, a, b []string) (there func(f func())) {
	t.Helper()
	there, tid := testkit.Elsewhere(t)
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = "a", mtu
	testkit.OK(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "b", PeerMTU: uint32(mtu),
		PeerNamespace: netlink.NsPid(tid)}))
	raise(t, "a", a...)
	there(func() { raise(t, "b", b...) })
	return there
}

// echoes starts a TCP server that sends back all bytes that it receives, and returns its address.
func echoes(t *testing.T, where string) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", where)
	if err != nil {
		t.Error(err)
		return netip.AddrPort{}
	}
	var conns []net.Conn // used by accepting, and by the cleanup after accepting has ended
	var accepting, work sync.WaitGroup
	accepting.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns = append(conns, c)
			work.Go(func() { _, _ = io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c}) })
		}
	})
	t.Cleanup(func() { // a guest may end without closing its connection
		_ = l.Close()
		accepting.Wait()
		for _, c := range conns {
			_ = c.Close()
		}
		work.Wait()
	})
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// through makes a guest send n bytes to a server of echoes, and checks that they come back.
func through(t *testing.T, g *labtest.Guest, to netip.AddrPort, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	c, err := g.Dial(ctx, netip.AddrPort{}, to)
	testkit.OK(t, err)
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(testkit.Patience))
	want := strings.Repeat("0123456789abcdef!", n/17+1)[:n]
	wrote := make(chan error, 1)
	go func() {
		_, err := io.WriteString(c, want)
		wrote <- err
	}()
	got := make([]byte, n)
	_, err = io.ReadFull(c, got)
	testkit.OK(t, errors.Join(err, <-wrote))
	if string(got) != want {
		t.Error("bytes came back changed")
	}
}

// joined opens a lab with an uplink and one guest, and returns the guest.
func joined(t *testing.T, c uplink.Config) *labtest.Guest {
	t.Helper()
	c.Name = "up0"
	w := open(t, lab.Uniform(1, lab.NIC{Model: lab.Virtio}, 0), lab.Options{Log: labtest.Log(t),
		Services: []lab.Service{lab.Uplink(uplink.Options{Config: c})}})
	g := attach(t, w.Port(0))
	t.Cleanup(func() { testkit.OK(t, g.Close()) })
	return g
}

// Invariant: uplink: VXLAN works with the kernel's VXLAN devices.
func TestVXLANOfTheKernel(t *testing.T) {
	if !testkit.InNamespace(t) {
		return
	}
	// VXLAN adds 50 bytes to a packet over IPv4, and 70 over IPv6; vx0 has an MTU of 1500.
	there := wired(t, 1600, []string{"192.0.2.1/24", "2001:db8::1/64"}, []string{"192.0.2.2/24", "2001:db8::2/64"})
	for i, ends := range [][2]string{{"192.0.2.1", "192.0.2.2"}, {"2001:db8::1", "2001:db8::2"}} {
		a, b := netip.MustParseAddr(ends[0]), netip.MustParseAddr(ends[1])
		var addr netip.AddrPort
		there(func() {
			attrs := netlink.NewLinkAttrs()
			attrs.Name, attrs.MTU = "vx0", 1500
			add(t, &netlink.Vxlan{LinkAttrs: attrs, VxlanId: 42 + i, SrcAddr: b.AsSlice(), Group: a.AsSlice(), Port: 4789,
				UDP6ZeroCSumTx: i == 1}, "10.118.110.77/24")
			completes(t, "vx0")
			addr = echoes(t, "10.118.110.77:0")
		})
		t.Run(ends[0], func(t *testing.T) {
			g := joined(t, uplink.Config{VXLAN: &uplink.VXLAN{Local: netip.AddrPortFrom(a, 4789),
				Remote: netip.AddrPortFrom(b, 4789), VNI: uint32(42 + i)}})
			through(t, g, addr, 2_000_000)
		})
		there(func() {
			l, err := netlink.LinkByName("vx0")
			testkit.NoError(t, errors.Join(err, netlink.LinkDel(l)))
		})
	}
}

func TestVXLANOverAnInterfaceOf1500(t *testing.T) {
	if !testkit.InNamespace(t) {
		return
	}
	wired(t, 1500, []string{"192.0.2.1/24", "2001:db8::1/64"}, nil)
	for _, c := range []struct {
		a, b string
		mtu  int
		want string
	}{
		{"192.0.2.1:4789", "192.0.2.2:4789", 1450, ""},
		{"192.0.2.1:4789", "192.0.2.2:4789", 1451, "carries packets of 1450 bytes (the route to 192.0.2.2 has an MTU of " +
			"1500, of which VXLAN takes 50), and NIC port0 has an MTU of 1451"},
		{"0.0.0.0:4789", "192.0.2.2:4789", 1500, "--mtu 1450"},
		{"[2001:db8::1]:4789", "[2001:db8::2]:4789", 1430, ""},
		{"[2001:db8::1]:4789", "[2001:db8::2]:4789", 1431, "carries packets of 1430 bytes"},
		{"192.0.2.9:4789", "192.0.2.2:4789", 1430, "local is an address of this machine"},
		{"192.0.2.1:4789", "198.51.100.1:4789", 1430, "no route to remote"},
	} {
		o := uplink.Config{Name: "up0", VXLAN: &uplink.VXLAN{Local: netip.MustParseAddrPort(c.a),
			Remote: netip.MustParseAddrPort(c.b), VNI: 1}}
		w, err := lab.Open(lab.Uniform(1, lab.NIC{Model: lab.Virtio, NICOptions: lab.NICOptions{MTU: c.mtu}}, 0), lab.Options{
			Services: []lab.Service{lab.Uplink(uplink.Options{Config: o})}})
		if c.want != "" {
			testkit.ErrorSays(t, err, c.want)
			continue
		}
		testkit.OK(t, err)
		testkit.OK(t, w.Close())
	}
}

// Invariant: uplink: A tap joins a lab to the kernel's bridges.
func TestTapOfTheKernel(t *testing.T) {
	if !testkit.InNamespace(t) {
		return
	}
	bridge := netlink.NewLinkAttrs()
	bridge.Name = "br0"
	add(t, &netlink.Bridge{LinkAttrs: bridge}, "10.118.110.77/24")
	br := testkit.Must(netlink.LinkByName("br0"))(t)
	testkit.OK(t, testkit.Tap("tap0"))
	raise(t, "tap0")
	dev := testkit.Must(netlink.LinkByName("tap0"))(t)
	testkit.OK(t, netlink.LinkSetMaster(dev, br))
	addr := echoes(t, "10.118.110.77:0")
	for range 2 {
		t.Run("", func(t *testing.T) { through(t, joined(t, uplink.Config{Tap: "tap0"}), addr, 2_000_000) })
	}
	try := func(c uplink.Config, mtu int, want ...string) {
		t.Helper()
		c.Name = "up0"
		_, err := lab.Open(lab.Uniform(1, lab.NIC{Model: lab.Virtio, NICOptions: lab.NICOptions{MTU: mtu}}, 0), lab.Options{
			Services: []lab.Service{lab.Uplink(uplink.Options{Config: c})}})
		testkit.ErrorSays(t, err, want...)
	}
	try(uplink.Config{Tap: "tap1"}, 1500, "there is no device tap1", "ip tuntap add dev tap1 mode tap vnet_hdr")
	try(uplink.Config{Tap: "br0"}, 1500, "br0: invalid argument: it is no tap device")
	try(uplink.Config{Tap: "tap0"}, 1501, "carries packets of 1500 bytes (tap0's own MTU)", "MTU of 1501")
	_ = joined(t, uplink.Config{Tap: "tap0"})
	try(uplink.Config{Tap: "tap0"}, 1500, "another program uses it")
}

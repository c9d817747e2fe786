package gateway

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/splitter"
)

func checked(n byte) wire.LinkOptions {
	return wire.LinkOptions{Identity: &wire.Identity{MAC: macOf(n)}}
}

// anyMAC returns link options of a guest that may use any free MAC, as one with a bridge does.
func anyMAC(n byte) wire.LinkOptions {
	return wire.LinkOptions{Identity: &wire.Identity{MAC: macOf(n), Any: true}}
}

func TestCheckedGuestsReachAll(t *testing.T) {
	w := newRig(t, nil)
	a, b := w.guest(1, checked(1)), w.guest(2, checked(2))
	for _, to := range []netip.AddrPort{
		netip.AddrPortFrom(prefix4.Addr(), echoServer(t, "tcp4").Port()),
		netip.AddrPortFrom(prefix6.Addr(), echoServer(t, "tcp6").Port()),
	} {
		for _, g := range []*guest{a, b} {
			testkit.OK(t, exchange(g.mustDial(to), noise(1<<20, 1)))
		}
	}
	for _, addr := range []netip.Addr{addr4Of(2), addr6Of(2)} {
		serveTCP(t, b.listen(addr, 7), echo)
		testkit.OK(t, exchange(a.mustDial(netip.AddrPortFrom(addr, 7)), noise(1<<20, 2)))
	}
	for _, l := range w.sw.Links() {
		if n := l.Counters(); n.Drops[wire.DropMAC]+n.Drops[wire.DropAddress]+n.Drops[wire.DropBadFrame] != 0 {
			t.Errorf("%s: %+v", l.Name(), n)
		}
	}
}

// ask makes a DHCP message of a client with hardware address mac, from an IP address to the gateway; if from is
// invalid, a broadcast from 0.0.0.0.
func (r *raw) ask(mac wire.MAC, from netip.Addr, mods ...dhcpv4.Modifier) []byte {
	m := testkit.Must(dhcpv4.New(append([]dhcpv4.Modifier{dhcpv4.WithHwAddr(mac[:])}, mods...)...))(r.t)
	src, dst := netip.AddrPortFrom(netip.IPv4Unspecified(), 68), netip.AddrPortFrom(broadcast4, 67)
	to := broadcastMAC
	if from.IsValid() {
		src, dst, to = netip.AddrPortFrom(from, 68), own4(67), gatewayMAC
	}
	return r.udp4(to, src, dst, m.ToBytes())
}

// lease gets an address by DHCP; its discover message asks for want, if that is valid.
func (r *raw) lease(want netip.Addr) netip.Addr {
	r.t.Helper()
	kind := dhcpv4.WithMessageType
	var mods []dhcpv4.Modifier
	if want.IsValid() {
		mods = append(mods, dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(want.AsSlice())))
	}
	offer := r.dhcp(append(mods, kind(dhcpv4.MessageTypeDiscover))...)
	ack := r.dhcp(kind(dhcpv4.MessageTypeRequest),
		dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(offer.YourIPAddr)),
		dhcpv4.WithOption(dhcpv4.OptServerIdentifier(offer.ServerIdentifier())))
	testkit.Equal(r.t, "answer", ack.MessageType(), dhcpv4.MessageTypeAck)
	return addr4(ack.YourIPAddr)
}

func (r *raw) refused(what string, frame []byte, want wire.DropReason) {
	r.t.Helper()
	if v := r.send(frame); v != wire.Drop(want) {
		r.t.Errorf("%s: %+v, want %v", what, v, want)
	}
}

// Invariant: stack/gateway: Among ports with an Identity, only its owner can request, decline and
// release a lease.
func TestLeasesAreTheirOwners(t *testing.T) {
	w := newRig(t, nil)
	a, b := w.raw(5, checked(5)), w.raw(6, checked(6))
	x := b.lease(netip.Addr{}) // from 0.0.0.0
	b.mustSend(b.arp(1, x, prefix4.Addr(), wire.MAC{}))
	server := dhcpv4.WithOption(dhcpv4.OptServerIdentifier(prefix4.Addr().AsSlice()))
	kind := dhcpv4.WithMessageType
	theft := func(a *raw, from netip.Addr) {
		for what, f := range map[string][]byte{
			"release": a.ask(b.mac, from, kind(dhcpv4.MessageTypeRelease), dhcpv4.WithClientIP(x.AsSlice()), server),
			"decline": a.ask(b.mac, from, kind(dhcpv4.MessageTypeDecline), server,
				dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(x.AsSlice()))),
			"request": a.ask(b.mac, from, kind(dhcpv4.MessageTypeRequest),
				dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(x.AsSlice()))),
			"discover": a.ask(macOf(2), from, kind(dhcpv4.MessageTypeDiscover)), // the MAC of a Host
		} {
			if !from.IsValid() {
				copy(f, gatewayMAC[:]) // as a broadcast it would also reach all others
			}
			a.refused(what+" in another's name", f, wire.DropMAC)
		}
	}
	theft(a, netip.Addr{})
	addr := a.lease(netip.Addr{})
	theft(a, addr)
	testkit.Equal(t, "malformed DHCP", w.g.Stats().BadDHCP, 8)
	for what, f := range map[string][]byte{
		"release from its address": a.ask(a.mac, x, kind(dhcpv4.MessageTypeRelease), dhcpv4.WithClientIP(x.AsSlice()),
			server),
		"ARP":                   a.arp(2, x, prefix4.Addr(), gatewayMAC),
		"a datagram":            a.udp4(gatewayMAC, netip.AddrPortFrom(x, 1), own4(53), nil),
		"a Host's address":      a.arp(1, addr4Of(1), addr4Of(1), wire.MAC{}),
		"the gateway's":         a.arp(2, prefix4.Addr(), x, b.mac),
		"the broadcast address": a.udp4(gatewayMAC, netip.AddrPortFrom(lastOf(prefix4), 1), own4(53), nil),
		"the gateway's, IPv6":   a.icmp6(broadcastMAC, prefix6.Addr(), addr6Of(5), []byte{128, 0, 0, 0, 0, 0, 0, 0}),
		"its link-local": a.icmp6(broadcastMAC, w.g.local6(), addr6Of(5),
			append([]byte{134, 0, 0, 0}, make([]byte, 12)...)),
	} {
		a.refused(what, f, wire.DropAddress)
	}
	testkit.Equal(t, "what b has", b.lease(netip.Addr{}), x)

	b.mustSend(b.ask(b.mac, x, kind(dhcpv4.MessageTypeRelease), dhcpv4.WithClientIP(x.AsSlice()), server))
	testkit.Eventually(t, "the release arrives", func() bool { return w.sw.MayLease(a.mac, x) })
	a.mustSend(a.ask(a.mac, addr, kind(dhcpv4.MessageTypeRelease), dhcpv4.WithClientIP(addr.AsSlice()), server))
	testkit.Eventually(t, "the release arrives", func() bool { return w.sw.MayLease(b.mac, addr) })
	testkit.Equal(t, "what a has, after b has given it back", a.lease(x), x)
	a.mustSend(a.arp(1, x, prefix4.Addr(), wire.MAC{}))
	b.refused("b's use", b.arp(1, x, prefix4.Addr(), wire.MAC{}), wire.DropAddress)
}

// Of a DHCP message in fragments the gateway's port does not see the client's MAC; then the source address decides
// (mayAsk).
func TestFragmentsAskForNobodyElse(t *testing.T) {
	w := newRig(t, nil)
	a, b := w.raw(5, checked(5)), w.raw(6, checked(6))
	x, addr := b.lease(netip.Addr{}), a.lease(netip.Addr{})
	release := a.ask(b.mac, addr, dhcpv4.WithMessageType(dhcpv4.MessageTypeRelease), dhcpv4.WithClientIP(x.AsSlice()),
		dhcpv4.WithOption(dhcpv4.OptServerIdentifier(prefix4.Addr().AsSlice())))
	before := w.g.Stats().BadDHCP
	fragments := func(f []byte) {
		const head, first = splitter.EthLen + 20, 64
		for i, part := range [][]byte{f[head : head+first], f[head+first:]} {
			p := append(append([]byte{}, f[:head]...), part...)
			ip := p[splitter.EthLen:head]
			binary.BigEndian.PutUint16(ip[2:], uint16(20+len(part)))
			ip[4], ip[5] = 0x12, 0x34
			binary.BigEndian.PutUint16(ip[6:], []uint16{0x2000, first / 8}[i])
			ip[10], ip[11] = 0, 0
			binary.BigEndian.PutUint16(ip[10:], ^splitter.Sum(ip, 0))
			a.mustSend(p)
		}
	}
	fragments(release)
	testkit.Eventually(t, "it is refused", func() bool { return w.g.Stats().BadDHCP == before+1 })
	testkit.Equal(t, "b's lease", w.sw.Holds(b.mac, x), true)
	// The control: a's release of its own lease is accepted in fragments.
	fragments(a.ask(a.mac, addr, dhcpv4.WithMessageType(dhcpv4.MessageTypeRelease), dhcpv4.WithClientIP(addr.AsSlice()),
		dhcpv4.WithOption(dhcpv4.OptServerIdentifier(prefix4.Addr().AsSlice()))))
	testkit.Eventually(t, "its own is heard", func() bool { return w.g.Stats().Leases == 1 })
}

func TestBridgeInAGuest(t *testing.T) {
	w := newRig(t, nil)
	a, b := w.raw(5, anyMAC(5)), w.raw(6, checked(6))
	static := netip.MustParseAddr("10.118.110.3") // the first of the pool
	b.mustSend(b.arp(1, static, static, wire.MAC{}))
	got := map[netip.Addr]bool{static: true}
	for n := byte(5); n < 25; n++ {
		if a.mac = macOf(n); n == 6 {
			a.refused("b's MAC", a.ask(a.mac, netip.Addr{}), wire.DropMAC)
			continue
		}
		x := a.lease(netip.Addr{})
		if got[x] {
			t.Errorf("%v is another's", x)
		}
		got[x] = true
		a.mustSend(a.arp(1, x, prefix4.Addr(), wire.MAC{}))
	}
	a.mac = gatewayMAC
	a.refused("the gateway's MAC", a.arp(1, addr4Of(5), prefix4.Addr(), wire.MAC{}), wire.DropMAC)
}

func TestNobodyTakesTheGatewaysTraffic(t *testing.T) {
	w := newRig(t, nil)
	a, b := w.raw(1, anyMAC(1)), w.raw(2, checked(2))
	b.meet()
	for _, mac := range []wire.MAC{gatewayMAC, b.mac} {
		a.mac = mac
		a.refused("their MAC", a.eth(broadcastMAC, 0x88cc, make([]byte, 40)), wire.DropMAC)
	}
	a.mac = macOf(1)
	for len(a.got) > 0 {
		<-a.got
	}
	b.mustSend(b.arp(1, addr4Of(2), prefix4.Addr(), wire.MAC{}))
	b.await("answer", func(f []byte) bool { return isARP(f, 2) })
	b.mustSend(b.udp4(gatewayMAC, netip.AddrPortFrom(addr4Of(2), 1), own4(9), []byte("secret of b")))
	for len(a.got) > 0 {
		if f := <-a.got; f[0]&1 == 0 {
			t.Errorf("a got %x", f)
		}
	}
}

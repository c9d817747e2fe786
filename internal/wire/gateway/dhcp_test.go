package gateway

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/splitter"
)

var broadcastMAC = wire.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// dhcp broadcasts a DHCP message, and returns the answer with the same transaction ID. The message comes from its
// ciaddr, or 0.0.0.0 if that is not set.
func (r *raw) dhcp(mods ...dhcpv4.Modifier) *dhcpv4.DHCPv4 {
	r.t.Helper()
	mods = append([]dhcpv4.Modifier{dhcpv4.WithHwAddr(r.mac[:])}, mods...)
	req, err := dhcpv4.New(mods...)
	testkit.OK(r.t, err)
	src, dst := netip.AddrPortFrom(netip.IPv4Unspecified(), 68), netip.AddrPortFrom(broadcast4, 67)
	if a := addr4(req.ClientIPAddr); !a.IsUnspecified() {
		src = netip.AddrPortFrom(a, 68)
	}
	r.mustSend(r.udp4(broadcastMAC, src, dst, req.ToBytes()))
	var m *dhcpv4.DHCPv4
	r.await("answer to "+req.Summary(), func(b []byte) bool {
		r.answerARP(b)
		var h splitter.Headers
		if splitter.Parse(b, uint32(len(b)), &h) != nil || h.Class != splitter.UDP || h.Flow.DstPort != 68 {
			return false
		}
		m, err = dhcpv4.FromBytes(b[h.HdrLen:])
		return err == nil && m.TransactionID == req.TransactionID
	})
	return m
}

func addr4(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}

func (r *raw) arp(op byte, from, to netip.Addr, toMAC wire.MAC) []byte {
	s, d := from.As4(), to.As4()
	dst := toMAC
	if op == 1 {
		dst = broadcastMAC
	}
	return r.eth(dst, splitter.EtherTypeARP, []byte{0, 1, 8, 0, 6, 4, 0, op}, r.mac[:], s[:], toMAC[:], d[:])
}

func TestDHCPIsNotForHostsOfOtherNetworks(t *testing.T) {
	w := newRig(t, func(o *Options) {
		o.Hosts = append(o.Hosts, Host{MAC: wire.MAC{2, 0, 0, 0, 0, 0x55}})
	})
	for mac, answered := range map[byte]bool{0x55: false, 0x56: true} {
		req := testkit.Must(dhcpv4.New(dhcpv4.WithHwAddr(net.HardwareAddr{2, 0, 0, 0, 0, mac}),
			dhcpv4.WithMessageType(dhcpv4.MessageTypeDiscover)))(t)
		reply, _ := w.g.answerDHCP(req.ToBytes(), time.Now())
		if reply == nil || len(reply) > 0 != answered {
			t.Errorf("%#x: %d bytes of an answer", mac, len(reply))
		}
	}
}

func TestDHCP(t *testing.T) {
	w := newRig(t, func(o *Options) { o.MTU = 9000 })
	known, other := w.raw(2), w.raw(77)
	kind := dhcpv4.WithMessageType
	want := func(a netip.Addr) dhcpv4.Modifier {
		return dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(a.AsSlice()))
	}

	offer := known.dhcp(kind(dhcpv4.MessageTypeDiscover))
	ack := known.dhcp(kind(dhcpv4.MessageTypeRequest), want(addr4(offer.YourIPAddr)),
		dhcpv4.WithOption(dhcpv4.OptServerIdentifier(offer.ServerIdentifier())))
	for _, m := range []*dhcpv4.DHCPv4{offer, ack} {
		gw := net.IP(prefix4.Addr().AsSlice())
		if addr4(m.YourIPAddr) != addr4Of(2) || !m.ServerIdentifier().Equal(gw) || len(m.Router()) != 1 ||
			!m.Router()[0].Equal(gw) ||
			len(m.DNS()) != 1 || !m.DNS()[0].Equal(gw) || m.HostName() != "b" || m.DomainName() != domain ||
			m.IPAddressLeaseTime(0) != leaseTime || !bytes.Equal(m.SubnetMask(), net.CIDRMask(24, 32)) ||
			!bytes.Equal(m.Options.Get(dhcpv4.OptionInterfaceMTU), []byte{0x23, 0x28}) {
			t.Error(m.Summary())
		}
	}
	if offer.MessageType() != dhcpv4.MessageTypeOffer || ack.MessageType() != dhcpv4.MessageTypeAck {
		t.Error(offer.MessageType(), ack.MessageType())
	}

	offer = other.dhcp(kind(dhcpv4.MessageTypeDiscover))
	got := addr4(offer.YourIPAddr)
	if !prefix4.Contains(got) || got == addr4Of(1) || got == addr4Of(2) || got == prefix4.Addr() ||
		offer.HostName() != "" {
		t.Error(offer.Summary())
	}
	for _, c := range []struct {
		name string
		mods []dhcpv4.Modifier
		want dhcpv4.MessageType
	}{
		{"request", []dhcpv4.Modifier{want(got)}, dhcpv4.MessageTypeAck},
		{"renewal", []dhcpv4.Modifier{dhcpv4.WithClientIP(got.AsSlice())}, dhcpv4.MessageTypeAck},
		{"another guest's", []dhcpv4.Modifier{want(addr4Of(1))}, dhcpv4.MessageTypeNak},
		{"the gateway's", []dhcpv4.Modifier{want(prefix4.Addr())}, dhcpv4.MessageTypeNak},
		{"of elsewhere", []dhcpv4.Modifier{want(netip.MustParseAddr("192.168.1.1"))}, dhcpv4.MessageTypeNak},
	} {
		m := other.dhcp(append(c.mods, kind(dhcpv4.MessageTypeRequest))...)
		if m.MessageType() != c.want || c.want == dhcpv4.MessageTypeAck && addr4(m.YourIPAddr) != got {
			t.Errorf("%s: %s", c.name, m.Summary())
		}
	}
	m := other.dhcp(kind(dhcpv4.MessageTypeInform), dhcpv4.WithClientIP(got.AsSlice()))
	if m.MessageType() != dhcpv4.MessageTypeAck ||
		!m.YourIPAddr.IsUnspecified() || m.Options.Has(dhcpv4.OptionIPAddressLeaseTime) || len(m.DNS()) != 1 {
		t.Error(m.Summary())
	}
	if m := other.dhcp(kind(dhcpv4.MessageTypeDiscover)); addr4(m.YourIPAddr) != got {
		t.Errorf("it had %v: %s", got, m.Summary())
	}
}

// An offer's source is the gateway's address, even while netstack has addresses of remote hosts, and its destination
// MAC is the client's.
func TestDHCPAnswersFromItsAddress(t *testing.T) {
	asked := make(chan Flow, 1000)
	w := newRig(t, nil, world(t, asked))
	r := w.raw(2)
	r.meet()
	for i := range byte(20) {
		to := netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 51, 100, i}), 9)
		r.mustSend(r.udp4(gatewayMAC, netip.AddrPortFrom(addr4Of(2), 2000), to, make([]byte, 8)))
		<-asked // netstack now has the remote address
		req := testkit.Must(dhcpv4.New(dhcpv4.WithHwAddr(r.mac[:]), dhcpv4.WithMessageType(dhcpv4.MessageTypeDiscover)))(t)
		r.mustSend(r.udp4(broadcastMAC, netip.AddrPortFrom(netip.IPv4Unspecified(), 68), netip.AddrPortFrom(broadcast4, 67),
			req.ToBytes()))
		b := r.await("offer", func(b []byte) bool {
			r.answerARP(b)
			return len(b) > 42 && b[12] == 8 && b[13] == 0 && b[23] == splitter.ProtoUDP && binary.BigEndian.Uint16(b[36:]) == 68
		})
		testkit.Equal(t, "from", netip.AddrFrom4([4]byte(b[26:30])), prefix4.Addr())
		testkit.Equal(t, "to", wire.MAC(b[:6]), r.mac)
	}
}

// Guests get vnic's own domain and then the host's search domains, by DHCP (RFC 3397) and router advertisements
// (RFC 8106); without NAT only vnic's.
func TestSearchList(t *testing.T) {
	conf := "domain old\nsearch a.example B.example. bad..name -x _x " + strings.Repeat("y", 64) + "\n"
	host := readSearch(strings.NewReader(conf))
	testkit.Equal(t, "host's", strings.Join(host, " "), "a.example b.example")
	many := readSearch(strings.NewReader("search 1 2 3 4 5 6 7\n"))
	testkit.Equal(t, "of seven", len(many), maxSearch)
	long := readSearch(strings.NewReader("search " + strings.Repeat(strings.Repeat("z", 63)+" ", 6)))
	testkit.Equal(t, "of long ones", len(long), 4)
	w := newRig(t, nil, func(g *Gateway) { g.search = append(g.search, host...) })
	r := w.raw(2)
	m := r.dhcp(dhcpv4.WithMessageType(dhcpv4.MessageTypeDiscover))
	testkit.Equal(t, "option 119", strings.Join(m.DomainSearch().Labels, " "), "vnic a.example b.example")
	testkit.Equal(t, "lease", m.IPAddressLeaseTime(0) >= 2*time.Hour, true)
	found := false
	for o := r.routerAdvertisement()[54+16:]; len(o) > 1 && o[1] > 0; o = o[8*int(o[1]):] {
		if o[0] == 31 {
			found = true
			testkit.Equal(t, "DNSSL", string(o[8:36]), "\x04vnic\x00\x01a\x07example\x00\x01b\x07example\x00")
		}
		if o[0] == 25 || o[0] == 31 { // a guest that was paused for half an hour still has them
			testkit.Equal(t, "lifetime", binary.BigEndian.Uint32(o[4:8]) >= 3600, true)
		}
	}
	testkit.Equal(t, "there is a DNSSL", found, true)
	alone := testkit.Must(newGateway(newSwitch(t), Options{MAC: gatewayMAC, Prefix4: prefix4}))(t)
	testkit.Equal(t, "without NAT", len(alone.search), 1)
}

func TestNoRouterWithoutNAT(t *testing.T) {
	r := newRig(t, func(o *Options) { o.NAT = false }).raw(2)
	if m := r.dhcp(dhcpv4.WithMessageType(dhcpv4.MessageTypeDiscover)); len(m.Router()) != 0 ||
		addr4(m.YourIPAddr) != addr4Of(2) {
		t.Error(m.Summary())
	}
	b := r.routerAdvertisement()
	if b[60] != 0 || b[61] != 0 {
		t.Errorf("router lifetime %x", b[60:62])
	}
}

func TestLeases(t *testing.T) {
	o := options()
	o.Prefix4 = netip.MustParsePrefix("10.118.110.6/29") // .1 and .2 belong to hosts, .3 to .5 are free
	l := newLeases(&o)
	now := time.Unix(1e9, 0)
	if len(l.pool) != 3 {
		t.Fatalf("%+v", l.pool)
	}
	offered := func(n byte) netip.Addr {
		a, _ := l.offer(macOf(n), netip.Addr{}, now)
		return a
	}
	none := netip.Addr{}
	var got []netip.Addr
	for n := byte(10); n < 13; n++ {
		a, ok := l.offer(macOf(n), netip.Addr{}, now)
		if !ok || slices.Contains(got, a) || !l.confirm(macOf(n), a, now) {
			t.Fatalf("%v of %v", a, got)
		}
		got = append(got, a)
	}
	testkit.Equal(t, "one more", offered(20), none)
	testkit.Equal(t, "a host's", offered(1), addr4Of(1))
	if l.confirm(macOf(20), got[0], now) || l.confirm(macOf(20), addr4Of(1), now) {
		t.Error("it has another's address")
	}
	l.release(macOf(20), got[1])
	testkit.Equal(t, "another's address, released", offered(20), none)
	l.release(macOf(11), got[1])
	testkit.Equal(t, "the free one", offered(20), got[1])
	l.decline(macOf(20), got[1], now)
	now = now.Add(badTime - 1)
	testkit.Equal(t, "an address in use", offered(20), none)
	now = now.Add(leaseTime)
	testkit.Equal(t, "of a client that comes back", offered(10), got[0])
	if !l.confirm(macOf(30), got[2], now) {
		t.Error("an address that has run out is not to be had")
	}
}

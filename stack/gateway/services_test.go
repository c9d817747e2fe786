package gateway

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"golang.org/x/net/dns/dnsmessage"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"vnic.dev/vnic/splitter"
	"vnic.dev/vnic/wire"
)

var broadcastMAC = wire.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// dhcp sends a request as a client without an address does, and gives the answer.
func (r *raw) dhcp(mods ...dhcpv4.Modifier) *dhcpv4.DHCPv4 {
	r.t.Helper()
	mods = append([]dhcpv4.Modifier{dhcpv4.WithHwAddr(r.mac[:])}, mods...)
	req, err := dhcpv4.New(mods...)
	if err != nil {
		r.t.Fatal(err)
	}
	src, dst := netip.AddrPortFrom(netip.IPv4Unspecified(), 68), netip.AddrPortFrom(broadcast4, 67)
	if a := addr4(req.ClientIPAddr); !a.IsUnspecified() {
		src = netip.AddrPortFrom(a, 68)
	}
	if v := r.send(r.udp4(broadcastMAC, src, dst, req.ToBytes())); v.Kind != wire.Taken {
		r.t.Fatalf("%+v", v)
	}
	var m *dhcpv4.DHCPv4
	r.await("answer to "+req.Summary(), func(b []byte) bool {
		if len(b) > 28 && binary.BigEndian.Uint16(b[12:]) == splitter.EtherTypeARP && b[21] == 1 { // so that it finds us
			_ = r.send(r.arp(2, netip.AddrFrom4([4]byte(b[38:42])), prefix4.Addr(), gatewayMAC))
		}
		var h splitter.Headers
		if splitter.Parse(b, uint32(len(b)), &h) != nil || h.Class != splitter.UDP || h.Flow.DstPort != 68 {
			return false
		}
		m, err = dhcpv4.FromBytes(b[h.HdrLen:])
		return err == nil && m.TransactionID == req.TransactionID
	})
	return m
}

// arp makes an ARP message.
func (r *raw) arp(op byte, from, to netip.Addr, toMAC wire.MAC) []byte {
	s, d := from.As4(), to.As4()
	dst := toMAC
	if op == 1 {
		dst = broadcastMAC
	}
	return r.eth(dst, splitter.EtherTypeARP, []byte{0, 1, 8, 0, 6, 4, 0, op}, r.mac[:], s[:], toMAC[:], d[:])
}

func TestDHCP(t *testing.T) {
	sw := newSwitch(t)
	o := options()
	o.MTU = 9000
	newTestGateway(t, sw, o)
	known, other := newRaw(t, sw, 2), newRaw(t, sw, 77)
	kind := dhcpv4.WithMessageType
	want := func(a netip.Addr) dhcpv4.Modifier {
		return dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(a.AsSlice()))
	}

	offer := known.dhcp(kind(dhcpv4.MessageTypeDiscover))
	ack := known.dhcp(kind(dhcpv4.MessageTypeRequest), want(addr4(offer.YourIPAddr)), dhcpv4.WithOption(dhcpv4.OptServerIdentifier(offer.ServerIdentifier())))
	for _, m := range []*dhcpv4.DHCPv4{offer, ack} {
		gw := net.IP(prefix4.Addr().AsSlice())
		if addr4(m.YourIPAddr) != addr4Of(2) || !m.ServerIdentifier().Equal(gw) || len(m.Router()) != 1 || !m.Router()[0].Equal(gw) ||
			len(m.DNS()) != 1 || !m.DNS()[0].Equal(gw) || m.HostName() != "b" || m.DomainName() != domain || m.IPAddressLeaseTime(0) != leaseTime ||
			!bytes.Equal(m.SubnetMask(), net.CIDRMask(24, 32)) || !bytes.Equal(m.Options.Get(dhcpv4.OptionInterfaceMTU), []byte{0x23, 0x28}) {
			t.Error(m.Summary())
		}
	}
	if offer.MessageType() != dhcpv4.MessageTypeOffer || ack.MessageType() != dhcpv4.MessageTypeAck {
		t.Error(offer.MessageType(), ack.MessageType())
	}

	offer = other.dhcp(kind(dhcpv4.MessageTypeDiscover))
	got := addr4(offer.YourIPAddr)
	if !prefix4.Contains(got) || got == addr4Of(1) || got == addr4Of(2) || got == prefix4.Addr() || offer.HostName() != "" {
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
	if m := other.dhcp(kind(dhcpv4.MessageTypeInform), dhcpv4.WithClientIP(got.AsSlice())); m.MessageType() != dhcpv4.MessageTypeAck ||
		!m.YourIPAddr.IsUnspecified() || m.Options.Has(dhcpv4.OptionIPAddressLeaseTime) || len(m.DNS()) != 1 {
		t.Error(m.Summary())
	}
	if m := other.dhcp(kind(dhcpv4.MessageTypeDiscover)); addr4(m.YourIPAddr) != got {
		t.Errorf("it had %v: %s", got, m.Summary())
	}
}

func TestLeases(t *testing.T) {
	o := options()
	o.Prefix4 = netip.MustParsePrefix("10.118.110.6/29") // .1 and .2 are hosts', .3 to .5 are free
	l := newLeases(&o)
	now := time.Unix(1e9, 0)
	if len(l.pool) != 3 {
		t.Fatalf("%+v", l.pool)
	}
	var got []netip.Addr
	for n := byte(10); n < 13; n++ {
		a, ok := l.offer(macOf(n), netip.Addr{}, now)
		if !ok || slices.Contains(got, a) || !l.confirm(macOf(n), a, now) {
			t.Fatalf("%v of %v", a, got)
		}
		got = append(got, a)
	}
	if _, ok := l.offer(macOf(20), netip.Addr{}, now); ok {
		t.Error("there is one more")
	}
	if a, ok := l.offer(macOf(1), netip.Addr{}, now); !ok || a != addr4Of(1) {
		t.Errorf("a host has %v", a)
	}
	if l.confirm(macOf(20), got[0], now) || l.confirm(macOf(20), addr4Of(1), now) {
		t.Error("it has another's address")
	}
	l.release(macOf(20), got[1])
	if _, ok := l.offer(macOf(20), netip.Addr{}, now); ok {
		t.Error("it released another's address")
	}
	l.release(macOf(11), got[1])
	if a, ok := l.offer(macOf(20), netip.Addr{}, now); !ok || a != got[1] {
		t.Errorf("%v is free, not %v", got[1], a)
	}
	l.decline(macOf(20), got[1], now)
	if _, ok := l.offer(macOf(20), netip.Addr{}, now.Add(badTime-1)); ok {
		t.Error("an address in use is given out")
	}
	now = now.Add(leaseTime)
	if a, ok := l.offer(macOf(10), netip.Addr{}, now); !ok || a != got[0] {
		t.Errorf("who comes back gets %v, not %v", a, got[0])
	}
	if !l.confirm(macOf(30), got[2], now) {
		t.Error("an address that has run out is not to be had")
	}
}

// The gateway answers for its own addresses, and for nobody else.
func TestNeighbors(t *testing.T) {
	sw := newSwitch(t)
	g := newTestGateway(t, sw, options())
	r := newRaw(t, sw, 1)
	arpReply := func(b []byte) bool { return binary.BigEndian.Uint16(b[12:]) == splitter.EtherTypeARP && b[21] == 2 }
	for range 3 { // whatever it answers to the others comes before
		r.send(r.arp(1, addr4Of(1), addr4Of(2), wire.MAC{}))
		r.send(r.arp(1, addr4Of(1), netip.MustParseAddr("8.8.8.8"), wire.MAC{}))
	}
	r.send(r.arp(1, addr4Of(1), prefix4.Addr(), wire.MAC{}))
	b := r.await("answer", arpReply)
	if netip.AddrFrom4([4]byte(b[28:32])) != prefix4.Addr() || wire.MAC(b[22:28]) != gatewayMAC {
		t.Errorf("%x", b)
	}

	advert := func(b []byte) bool { return len(b) >= 78 && b[20] == protoICMPv6 && b[54] == ndNeighborAdvert }
	r.send(r.solicit(addr6Of(2)))
	r.send(r.solicit(netip.MustParseAddr("2001:db8::1")))
	for _, a := range []netip.Addr{prefix6.Addr(), g.local6()} {
		r.send(r.solicit(a))
		b := r.await("advertisement", advert)
		if netip.AddrFrom16([16]byte(b[62:78])) != a || wire.MAC(b[6:12]) != gatewayMAC || b[58]&0x80 == 0 {
			t.Errorf("%x", b)
		}
	}
}

// icmp6 makes an ICMPv6 message with a good checksum.
func (r *raw) icmp6(to wire.MAC, src, dst netip.Addr, msg []byte) []byte {
	ip := make([]byte, 40)
	header.IPv6(ip).Encode(&header.IPv6Fields{PayloadLength: uint16(len(msg)), TransportProtocol: header.ICMPv6ProtocolNumber, HopLimit: 255,
		SrcAddr: addressOf(src), DstAddr: addressOf(dst)})
	msg[2], msg[3] = 0, 0
	sum := header.ICMPv6Checksum(header.ICMPv6ChecksumParams{Header: header.ICMPv6(msg), Src: addressOf(src), Dst: addressOf(dst)})
	binary.BigEndian.PutUint16(msg[2:], sum)
	return r.eth(to, splitter.EtherTypeIPv6, ip, msg)
}

// solicit makes a neighbor solicitation.
func (r *raw) solicit(target netip.Addr) []byte {
	a := target.As16()
	msg := append(append(make([]byte, 8), a[:]...), append([]byte{1, 1}, r.mac[:]...)...)
	msg[0] = ndSolicit
	group := header.SolicitedNodeAddr(tcpip.AddrFrom16(a)).As16()
	return r.icmp6(wire.MAC{0x33, 0x33, group[12], group[13], group[14], group[15]}, addr6Of(1), netip.AddrFrom16(group), msg)
}

func TestRouterAdvertisements(t *testing.T) {
	sw := newSwitch(t)
	newTestGateway(t, sw, options())
	r := newRaw(t, sw, 1)
	all := netip.MustParseAddr("ff02::2")
	r.send(r.icmp6(wire.MAC{0x33, 0x33, 0, 0, 0, 2}, netip.MustParseAddr("fe80::1"), all, []byte{ndRouterSolicit, 0, 0, 0, 0, 0, 0, 0}))
	b := r.await("router advertisement", func(b []byte) bool { return len(b) > 60 && b[20] == protoICMPv6 && b[54] == 134 })
	src, dst := tcpip.AddrFrom16([16]byte(b[22:38])), tcpip.AddrFrom16([16]byte(b[38:54]))
	msg := header.ICMPv6(b[54:])
	want := msg.Checksum()
	if got := header.ICMPv6Checksum(header.ICMPv6ChecksumParams{Header: msg, Src: src, Dst: dst}); got != want {
		t.Errorf("checksum %#x, not %#x", want, got)
	}
	ra := header.NDPRouterAdvert(msg.MessageBody())
	if ra.RouterLifetime() != 1800*time.Second || !header.IsV6LinkLocalUnicastAddress(src) {
		t.Errorf("%v from %v", ra.RouterLifetime(), src)
	}
	it, err := ra.Options().Iter(true)
	if err != nil {
		t.Fatal(err)
	}
	var prefix header.NDPPrefixInformation
	var dns header.NDPRecursiveDNSServer
	for o, done, err := it.Next(); !done && err == nil; o, done, err = it.Next() {
		switch o := o.(type) {
		case header.NDPPrefixInformation:
			prefix = o
		case header.NDPRecursiveDNSServer:
			dns = o
		}
	}
	if prefix == nil || prefix.Prefix() != addressOf(prefix6.Masked().Addr()) || !prefix.OnLinkFlag() || !prefix.AutonomousAddressConfigurationFlag() {
		t.Errorf("prefix: %x", prefix)
	}
	if as, err := dns.Addresses(); err != nil || len(as) != 1 || as[0] != addressOf(prefix6.Addr()) {
		t.Errorf("dns: %v, %v", as, err)
	}
	if a := EUI64(prefix6, wire.MAC{0x52, 0x54, 0, 1, 2, 3}); a != netip.MustParseAddr("fd76:6e69::5054:ff:fe01:203") {
		t.Error(a)
	}
}

// The gateway answers pings of its own addresses only.
func TestPing(t *testing.T) {
	sw := newSwitch(t)
	newTestGateway(t, sw, options())
	r := newRaw(t, sw, 1)
	ping4 := func(dst netip.Addr, seq byte) {
		ip := make([]byte, 20)
		header.IPv4(ip).Encode(&header.IPv4Fields{TotalLength: 20 + 64, TTL: 64, Protocol: 1, SrcAddr: addressOf(addr4Of(1)), DstAddr: addressOf(dst)})
		header.IPv4(ip).SetChecksum(^header.IPv4(ip).CalculateChecksum())
		msg := make([]byte, 64)
		msg[0], msg[7] = 8, seq
		header.ICMPv4(msg).SetChecksum(^splitter.Sum(msg, 0))
		r.send(r.eth(gatewayMAC, splitter.EtherTypeIPv4, ip, msg))
	}
	ping6 := func(dst netip.Addr, seq byte) {
		msg := make([]byte, 64)
		msg[0], msg[7] = 128, seq
		r.send(r.icmp6(gatewayMAC, addr6Of(1), dst, msg))
	}
	ping4(netip.MustParseAddr("8.8.8.8"), 1)
	ping4(prefix4.Addr(), 2)
	ping6(netip.MustParseAddr("2001:db8::1"), 3)
	ping6(prefix6.Addr(), 4)
	got := map[byte]bool{}
	r.await("pongs", func(b []byte) bool {
		switch {
		case binary.BigEndian.Uint16(b[12:]) == splitter.EtherTypeARP && b[21] == 1:
			r.send(r.arp(2, addr4Of(1), prefix4.Addr(), gatewayMAC))
		case b[12] == 8 && b[13] == 0 && b[23] == 1 && b[34] == 0:
			got[b[41]] = true
		case b[20] == protoICMPv6 && b[54] == ndSolicit:
			a := addr6Of(1).As16()
			msg := append(append([]byte{ndNeighborAdvert, 0, 0, 0, 0x60, 0, 0, 0}, a[:]...), append([]byte{2, 1}, r.mac[:]...)...)
			r.send(r.icmp6(gatewayMAC, addr6Of(1), netip.AddrFrom16([16]byte(b[22:38])), msg))
		case b[20] == protoICMPv6 && b[54] == 129:
			got[b[61]] = true
		}
		return got[2] && got[4]
	})
	if got[1] || got[3] {
		t.Error("it answers for others")
	}
}

// resolver asks the gateway from a guest, over UDP or TCP.
func (v *guest) resolver(network string, at netip.AddrPort) *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, n, _ string) (net.Conn, error) {
		if network == "udp" {
			a := fullAddress(at)
			return gonet.DialUDP(v.ns, nil, &a, protocolOf(at.Addr()))
		}
		c, err := gonet.DialContextTCP(ctx, v.ns, fullAddress(at), protocolOf(at.Addr()))
		return c, err
	}}
}

func TestNames(t *testing.T) {
	sw := newSwitch(t)
	upstream := newResolver(t)
	g := newTestGateway(t, sw, options(), func(g *Gateway) { g.resolvers = func() []netip.AddrPort { return upstream } })
	v := newGuest(t, sw, 1, 1500, wire.LinkOptions{})
	for _, network := range []string{"udp", "tcp"} {
		for _, at := range []netip.AddrPort{own4(53), own6(53)} {
			r := v.resolver(network, at)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			for name, want := range map[string][]netip.Addr{
				"b.vnic.": {addr4Of(2), addr6Of(2)}, "B.": {addr4Of(2), addr6Of(2)}, "gateway.": {prefix4.Addr(), prefix6.Addr()},
				"nobody.vnic.": nil, "example.org.": {netip.MustParseAddr("192.0.2.1")}, "missing.org.": nil,
			} {
				got, err := r.LookupNetIP(ctx, "ip", name)
				for i := range got {
					got[i] = got[i].Unmap()
				}
				slices.SortFunc(got, netip.Addr.Compare)
				if !slices.Equal(got, want) || (err == nil) != (want != nil) {
					t.Errorf("%s %v %s: %v, %v", network, at, name, got, err)
				}
			}
		}
	}
	if s := g.Stats(); s.Forwarded == 0 || s.Queries <= s.Forwarded {
		t.Errorf("%+v", s)
	}
}

// newResolver is a resolver of the host's that knows example.org, over UDP and TCP. A first one does not answer right.
func newResolver(t testing.TB) []netip.AddrPort {
	t.Helper()
	answer := func(b []byte) []byte {
		var p dnsmessage.Parser
		h, err := p.Start(b)
		if err != nil {
			return nil
		}
		q, err := p.Question()
		if err != nil {
			return nil
		}
		n := &names{addrs: map[string][2]netip.Addr{"example.org": {netip.MustParseAddr("192.0.2.1")}}}
		if out := n.answer(&h, &q); out != nil {
			return out
		}
		return fail(&h, &q, dnsmessage.RCodeNameError)
	}
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().(*net.TCPAddr).AddrPort()
	u, err := net.ListenPacket("udp4", at.String())
	if err != nil {
		t.Skip(err) // somebody has the port
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			buf := make([]byte, 64<<10)
			if n, err := readMessage(c, "tcp", buf); err == nil {
				b := answer(buf[:n])
				_, _ = c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(b))), b...))
			}
			c.Close()
		}
	}()
	go func() {
		buf := make([]byte, 64<<10)
		for {
			n, from, err := u.ReadFrom(buf)
			if err != nil {
				return
			}
			b := answer(buf[:n])
			forged := bytes.Clone(b)
			forged[0] ^= 1
			_, _ = u.WriteTo(forged, from) // who takes this is easy to fool
			_, _ = u.WriteTo(b, from)
		}
	}()
	t.Cleanup(func() {
		l.Close()
		u.Close()
	})
	closed, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dead := closed.Addr().(*net.TCPAddr).AddrPort()
	closed.Close()
	return []netip.AddrPort{dead, at}
}

// ask asks in one message, and gives the answer's code.
func ask(t testing.TB, g *Gateway, name string, change ...func(*dnsmessage.Message)) (dnsmessage.RCode, bool) {
	t.Helper()
	m := dnsmessage.Message{Header: dnsmessage.Header{ID: 7, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}}}
	for _, f := range change {
		f(&m)
	}
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	s := &dnsServer{g: g}
	out, forward := s.answer(b)
	if forward != nil {
		out = s.ask(forward, "udp")
	}
	var a dnsmessage.Message
	if out == nil {
		return 0, false
	}
	if err := a.Unpack(out); err != nil || a.ID != 7 || !a.Response {
		t.Fatalf("%v: %+v", err, a)
	}
	return a.RCode, true
}

func TestQuestionsThatGetNoAddress(t *testing.T) {
	g := newTestGateway(t, newSwitch(t), options())
	o := options()
	o.NAT = false
	isolated := newTestGateway(t, newSwitch(t), o)
	for _, c := range []struct {
		name, q string
		g       *Gateway
		change  func(*dnsmessage.Message)
		code    dnsmessage.RCode
		silent  bool
	}{
		{"no resolvers", "example.org.", g, nil, dnsmessage.RCodeServerFailure, false},
		{"nothing leaves", "example.org.", isolated, nil, dnsmessage.RCodeRefused, false},
		{"own names all the same", "a.", isolated, nil, dnsmessage.RCodeSuccess, false},
		{"not there", "c.vnic.", isolated, nil, dnsmessage.RCodeNameError, false},
		{"an answer", "a.", g, func(m *dnsmessage.Message) { m.Response = true }, 0, true},
		{"another operation", "a.", g, func(m *dnsmessage.Message) { m.OpCode = 4 }, dnsmessage.RCodeNotImplemented, false},
		{"two questions", "a.", g, func(m *dnsmessage.Message) { m.Questions = append(m.Questions, m.Questions[0]) }, dnsmessage.RCodeFormatError, false},
		{"no question", "a.", g, func(m *dnsmessage.Message) { m.Questions = nil }, dnsmessage.RCodeFormatError, false},
		{"another type", "a.", g, func(m *dnsmessage.Message) { m.Questions[0].Type = dnsmessage.TypeMX }, dnsmessage.RCodeSuccess, false},
	} {
		if c.change == nil {
			c.change = func(*dnsmessage.Message) {}
		}
		if code, ok := ask(t, c.g, c.q, c.change); code != c.code || ok == c.silent {
			t.Errorf("%s: %v, %v", c.name, code, ok)
		}
	}
}

func TestResolvConf(t *testing.T) {
	got := readResolvers(bytes.NewReader([]byte("# nameserver 9.9.9.9\nsearch x\nnameserver 127.0.0.53\nnameserver\n" +
		"nameserver fe80::1%eth0 x\nnameserver nobody\nnameserver 1.1.1.1\nnameserver 2.2.2.2\n")))
	want := []netip.AddrPort{netip.MustParseAddrPort("127.0.0.53:53"), netip.MustParseAddrPort("[fe80::1%eth0]:53"), netip.MustParseAddrPort("1.1.1.1:53")}
	if !slices.Equal(got, want) {
		t.Error(got)
	}
}

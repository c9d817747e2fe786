package gateway

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/splitter"
)

// unstarted makes a gateway that is not started, for calls of answerDHCP and dnsServer.answer.
func unstarted(t testing.TB) *Gateway {
	g := testkit.Must(newGateway(newSwitch(t), options()))(t)
	g.port = &port{filter: filter{prefix4: prefix4, prefix6: prefix6}}
	return g
}

func FuzzDHCP(f *testing.F) {
	for _, k := range []dhcpv4.MessageType{dhcpv4.MessageTypeDiscover, dhcpv4.MessageTypeRequest, dhcpv4.MessageTypeInform,
		dhcpv4.MessageTypeRelease, dhcpv4.MessageTypeDecline, 0, 200} {
		mac := macOf(byte(k))
		m, err := dhcpv4.New(dhcpv4.WithHwAddr(mac[:]), dhcpv4.WithMessageType(k),
			dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(addr4Of(byte(k)).AsSlice())),
			dhcpv4.WithOption(dhcpv4.OptClientIdentifier(mac[:])))
		testkit.OK(f, err)
		f.Add(m.ToBytes())
	}
	g := unstarted(f)
	now := time.Unix(1e9, 0)
	f.Fuzz(func(t *testing.T, b []byte) {
		now = now.Add(time.Second)
		reply, to := g.answerDHCP(b, now)
		if len(reply) == 0 {
			return
		}
		m, err := dhcpv4.FromBytes(reply)
		if err != nil || m.OpCode != dhcpv4.OpcodeBootReply || to.Port() != portDHCPClient {
			t.Fatalf("%v: %x", err, reply)
		}
		a := addr4(m.YourIPAddr)
		host := g.leases.hosts[wire.MAC(m.ClientHWAddr)]
		switch {
		case a.IsUnspecified():
		case host != nil && a != host.Addr4, host == nil && g.leases.byAddr(a) == nil:
			t.Fatalf("%v is not for %v", a, m.ClientHWAddr)
		}
		if len(g.leases.pool) != poolSize {
			t.Fatal(len(g.leases.pool))
		}
	})
}

func FuzzDNS(f *testing.F) {
	for _, s := range []string{
		"\x00\x07\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x01a\x04vnic\x00\x00\x01\x00\x01",
		"\x00\x07\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x07example\x03org\x00\x00\x1c\x00\x01",
		"\x00\x07\x01\x00\x00\x02\x00\x00\x00\x00\x00\x00\x01a\x00\x00\x01\x00\x01\xc0\x0c\x00\xff\x00\x01",
		"\x00\x07\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x012\x03110\x03118\x0210\x07in-addr\x04arpa\x00\x00\x0c\x00\x01",
		"\x00\x07\x81\x00\x00\x01\x00\x00\x00\x00\x00\x00\xc0\x0c\x00\x01\x00\x01", "", "\x00",
	} {
		f.Add([]byte(s))
	}
	g := unstarted(f)
	s := &dnsServer{g: g}
	f.Fuzz(func(t *testing.T, b []byte) {
		out, forward := s.answer(b, maxTCPQuestion)
		if out != nil && (len(out) < 12 || out[0] != b[0] || out[1] != b[1] || out[2]&0x80 == 0) {
			t.Fatalf("%x: %x", b, out)
		}
		if forward != nil && (out != nil || string(forward.raw) != string(b)) {
			t.Fatalf("%x: %x and %x", b, out, forward.raw)
		}
		if forward != nil {
			answers(b, forward.header.ID, &forward.q)
		}
	})
}

// Whatever one guest sends from its MAC, another one still gets an answer by ARP.
func FuzzFrames(f *testing.F) {
	w := newRig(f, nil, func(g *Gateway) {
		g.dial = func(context.Context, string, permit) (net.Conn, error) { // no fuzzer's packet leaves
			return nil, net.ErrClosed
		}
		g.openFlow = func(context.Context, Flow, permit) (*net.UDPConn, error) { return nil, net.ErrClosed }
	})
	r, other := w.raw(1), w.raw(2)
	for _, b := range [][]byte{
		r.arp(1, addr4Of(1), prefix4.Addr(), wire.MAC{}), r.arp(2, addr4Of(1), prefix4.Addr(), gatewayMAC),
		r.udp4(gatewayMAC, netip.AddrPortFrom(addr4Of(1), 1), own4(53), []byte("question")),
		r.udp4(broadcastMAC, netip.AddrPortFrom(netip.IPv4Unspecified(), 68), netip.AddrPortFrom(broadcast4, 67),
			make([]byte, 240)),
		r.solicit(prefix6.Addr()), r.solicit(addr6Of(7)),
		r.syn(netip.AddrPortFrom(addr4Of(1), 1), own4(53)),
		r.syn(netip.AddrPortFrom(addr4Of(1), 1), netip.MustParseAddrPort("192.0.2.1:80")),
		r.udp4(gatewayMAC, netip.AddrPortFrom(addr4Of(1), 1), netip.MustParseAddrPort("192.0.2.1:80"), make([]byte, 99)),
		r.icmp6(gatewayMAC, addr6Of(1), prefix6.Addr(), make([]byte, 64)),
		r.solicitRouter(addr6Of(1)),
	} {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < 14 || len(b) > 9000 {
			return
		}
		copy(b[6:12], r.mac[:]) // otherwise the switch may learn the other guest's MAC at r's port
		r.send(b)
		if r.describe(b) { // once more, with a partial checksum
			p := &r.pkt
			if start, off, ok := splitter.CsumPlace(&p.Meta.Headers); ok {
				p.Meta.Csum, p.Meta.CsumStart, p.Meta.CsumOffset = splitter.CsumPartial, start, off
				r.link.Deliver(r.w, []*wire.Packet{p})
			}
		}
		other.send(other.arp(1, addr4Of(2), prefix4.Addr(), wire.MAC{}))
		other.t = t
		other.await("answer", func(b []byte) bool { // the other guest also gets the fuzzer's broadcasts
			return isARP(b, 2) && wire.MAC(b[6:12]) == gatewayMAC
		})
	})
}

// The test's policy allows no IPv4 address, also mapped into IPv6, that is link-local, multicast or (but for port 22)
// loopback. It allows no address that embeds a link-local IPv4 address or 100.100.100.200 in a form of embedded.
func FuzzPolicy(f *testing.F) {
	for _, s := range []string{"169.254.169.254", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::",
		"2001:0:c000:201:0:ffff:5601:5601", "64:ff9b:1:a9fe:a9:fe00::", "fd00:ec2::254", "2001:db8::5efe:a9fe:a9fe", "::",
		"::1", "10.1.2.3", "100.100.100.200"} {
		a := netip.MustParseAddr(s)
		f.Add(a.AsSlice(), uint16(80))
	}
	g := judging(f, Policy{HostPorts: ports(f, "22"), Deny: prefixes(f, "10.0.0.0/8", "2001:db8:1::/48")})
	f.Fuzz(func(t *testing.T, b []byte, port uint16) {
		a, ok := netip.AddrFromSlice(b)
		if !ok {
			return
		}
		list := layers(a)
		if len(list) > maxLayers || list[0] != a {
			t.Fatalf("%v: %v", a, list)
		}
		p, no := g.check(netip.AddrPortFrom(a, port))
		if (no == nil) != (p.to == netip.AddrPortFrom(a, port)) || no != nil && (no.rule == RuleNone || no.flag == "") {
			t.Fatalf("%v: %v, %v", a, p, no)
		}
		if no != nil {
			return
		}
		v4 := a.Unmap()
		if v4.Is4() && (v4.IsLoopback() && port != 22 || v4.IsLinkLocalUnicast() || v4.IsMulticast()) {
			t.Fatalf("%v passes", a)
		}
		for _, e := range embedded {
			if !e.prefix.Contains(a) {
				continue
			}
			for _, extract := range e.extract {
				b := a.As16()
				if v4 := netip.AddrFrom4(extract(&b)); v4.IsLinkLocalUnicast() ||
					v4 == netip.AddrFrom4([4]byte{100, 100, 100, 200}) {
					t.Fatalf("%v passes, with %v in it", a, v4)
				}
			}
		}
	})
}

func FuzzPolicyFlags(f *testing.F) {
	for _, s := range []string{"10.0.0.0/8", "10.0.0.1", "::/0", "2001:db8::/32", "::ffff:10.0.0.0/104", "fe80::1%eth0",
		"all", "none", "80", "80,8000-8010", "0", "1-65535", "80-", "-", ",", "+80", " 80", "0x50"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if p, err := ParsePrefix(s); err == nil {
			again, err := ParsePrefix(p.String())
			if err != nil || again != p || p != p.Masked() || p.Addr().Zone() != "" || p.Addr().Is4In6() {
				t.Fatalf("%q: %v, then %v, %v", s, p, again, err)
			}
			if !p.Contains(p.Addr()) {
				t.Fatalf("%q: %v", s, p)
			}
		}
		if p, err := ParsePorts(s); err == nil {
			again, err := ParsePorts(p.String())
			if err != nil || again.String() != p.String() || len(again.ranges) != len(p.ranges) && p.String() != "all" {
				t.Fatalf("%q: %v, then %v, %v", s, p, again, err)
			}
			for _, port := range []uint16{0, 1, 22, 80, 8005, 65535} {
				if again.Contains(port) != p.Contains(port) {
					t.Fatalf("%q: %v", s, p)
				}
			}
		}
	})
}

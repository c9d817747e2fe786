package gateway

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/splitter"
	"vnic.dev/vnic/wire"
)

// unstarted is a gateway whose handlers can be called.
func unstarted(t testing.TB) *Gateway {
	g := testkit.Must(newGateway(newSwitch(t), options()))(t)
	g.port = &port{filter: filter{prefix4: prefix4, prefix6: prefix6}}
	return g
}

// Whatever a client says: an answer is a message, of an address that is free, and a host's is its own.
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

// Whatever a guest asks: an answer is one to that question, or it is forwarded as it is.
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
		out, forward := s.answer(b)
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

// Whatever a guest sends, another one is answered.
func FuzzFrames(f *testing.F) {
	w := newRig(f, nil, func(g *Gateway) {
		g.dial = func(context.Context, string, netip.AddrPort) (net.Conn, error) { // nothing that a fuzzer says leaves
			return nil, net.ErrClosed
		}
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
		copy(b[6:12], r.mac[:]) // else it may take the other's place on the switch
		r.send(b)
		if r.describe(b) { // with all that a sender may say of it
			p := &r.pkt
			if start, off, ok := splitter.CsumPlace(&p.Meta.Headers); ok {
				p.Meta.Csum, p.Meta.CsumStart, p.Meta.CsumOffset = splitter.CsumPartial, start, off
				r.link.Deliver(r.w, []*wire.Packet{p})
			}
		}
		other.send(other.arp(1, addr4Of(2), prefix4.Addr(), wire.MAC{}))
		other.t = t
		other.await("answer", func(b []byte) bool { // it also gets what the fuzzer sends to all
			return isARP(b, 2) && wire.MAC(b[6:12]) == gatewayMAC
		})
	})
}

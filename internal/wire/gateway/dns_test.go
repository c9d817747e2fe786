package gateway

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"

	"vnic.dev/vnic/internal/ether"
	"vnic.dev/vnic/internal/testkit"
)

func (v *guest) resolver(network string, addr netip.AddrPort) *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, n, _ string) (net.Conn, error) {
		if network == "udp" {
			a := fullAddress(addr)
			return gonet.DialUDP(v.ns, nil, &a, ether.Protocol(addr.Addr()))
		}
		c, err := gonet.DialContextTCP(ctx, v.ns, fullAddress(addr), ether.Protocol(addr.Addr()))
		return c, err
	}}
}

func TestNames(t *testing.T) {
	upstream := newResolver(t)
	w := newRig(t, nil, func(g *Gateway) {
		g.askTime = patience
		g.resolvers = func() []netip.AddrPort { return upstream }
	})
	v := w.guest(1)
	for _, network := range []string{"udp", "tcp"} {
		for _, addr := range []netip.AddrPort{own4(53), own6(53)} {
			r := v.resolver(network, addr)
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
					t.Errorf("%s %v %s: %v, %v", network, addr, name, got, err)
				}
			}
		}
	}
	r := v.resolver("udp", own4(53))
	for addr, want := range map[string][]string{
		"10.118.110.2": {"b.vnic."}, "fd76:6e69::2": {"b.vnic."}, "fd76:6e69::fe": {"gateway.vnic."},
		"10.118.110.9": nil, "fd76:6e69::9": nil,
	} {
		if got, err := r.LookupAddr(t.Context(), addr); !slices.Equal(got, want) || (err == nil) != (want != nil) {
			t.Errorf("%s: %v, %v", addr, got, err)
		}
	}
	if s := w.g.Stats(); s.Forwarded == 0 || s.Queries <= s.Forwarded {
		t.Errorf("%+v", s)
	}
}

// newResolver starts a resolver on the host that knows example.org. It returns two addresses: first one at which
// nobody listens over TCP, then the resolver's.
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
	l, _ := listenTCP(t)
	addr := l.Addr().(*net.TCPAddr).AddrPort()
	u, err := net.ListenPacket("udp4", addr.String())
	if err != nil {
		t.Skip(err) // the UDP port is in use
	}
	serveTCP(t, l, func(c net.Conn) {
		buf := make([]byte, 64<<10)
		if n, err := readMessage(c, "tcp", buf); err == nil {
			b := answer(buf[:n])
			_, _ = c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(b))), b...))
		}
	})
	serveUDP(t, u, func(b []byte) [][]byte {
		b = answer(b)
		forged := bytes.Clone(b)
		forged[0] ^= 1
		return [][]byte{forged, b} // a client that accepts the first answer can be spoofed
	})
	closed, dead := listenTCP(t)
	closed.Close()
	return []netip.AddrPort{netip.AddrPortFrom(addr.Addr(), dead), addr}
}

// Over TCP a question, here a padded one (RFC 7830), may be as long as its length field allows.
func TestQuestionsOverTCP(t *testing.T) {
	resolvers := newResolver(t)
	v := newRig(t, nil, func(g *Gateway) { g.resolvers = func() []netip.AddrPort { return resolvers } }).guest(1)
	ask := func(c net.Conn, size int) dnsmessage.Message {
		q := dnsmessage.Message{Header: dnsmessage.Header{ID: 7, RecursionDesired: true}, Questions: []dnsmessage.Question{
			{Name: dnsmessage.MustNewName("example.org."), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}}}
		b := testkit.Must(q.Pack())(t)
		const opt = 11 + 4 // bytes of the record, and of an option's header
		var rh dnsmessage.ResourceHeader
		testkit.OK(t, rh.SetEDNS0(4096, 0, false))
		q.Additionals = []dnsmessage.Resource{{Header: rh, Body: &dnsmessage.OPTResource{Options: []dnsmessage.Option{
			{Code: 12, Data: make([]byte, size-len(b)-opt)}}}}}
		b = testkit.Must(q.Pack())(t)
		testkit.Equal(t, "bytes", len(b), size)
		testkit.Must(c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(size)), b...)))(t)
		buf := make([]byte, 64<<10)
		n := testkit.Must(readMessage(c, "tcp", buf))(t)
		var m dnsmessage.Message
		testkit.OK(t, m.Unpack(buf[:n]))
		return m
	}
	var conns []net.Conn
	for range maxDNSConns {
		c := v.mustDial(own4(portDNS))
		defer c.Close()
		conns = append(conns, c)
	}
	for i, size := range []int{100, 4096, 4097, 20000, 65535} {
		testkit.Equal(t, fmt.Sprintf("answer to %d bytes", size), ask(conns[i], size).RCode, dnsmessage.RCodeSuccess)
	}
}

// ask passes a question for an A record, after change, to the gateway's DNS, also to its resolvers, and returns the
// answer's code; false: there is no answer.
func ask(t testing.TB, g *Gateway, name string, change func(*dnsmessage.Message)) (dnsmessage.RCode, bool) {
	t.Helper()
	m := dnsmessage.Message{Header: dnsmessage.Header{ID: 7, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: dnsmessage.TypeA,
			Class: dnsmessage.ClassINET}}}
	if change != nil {
		change(&m)
	}
	b, err := m.Pack()
	testkit.OK(t, err)
	s := &dnsServer{g: g}
	out, forward := s.answer(b, maxUDPQuestion)
	if forward != nil {
		out = s.ask(t.Context(), forward, "udp")
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
	g, isolated := newRig(t, nil).g, newRig(t, func(o *Options) { o.NAT = false }).g
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
		{"two questions", "a.", g, func(m *dnsmessage.Message) { m.Questions = append(m.Questions, m.Questions[0]) },
			dnsmessage.RCodeFormatError, false},
		{"no question", "a.", g, func(m *dnsmessage.Message) { m.Questions = nil }, dnsmessage.RCodeFormatError, false},
		{"another type", "a.", g, func(m *dnsmessage.Message) { m.Questions[0].Type = dnsmessage.TypeMX },
			dnsmessage.RCodeSuccess, false},
	} {
		if code, ok := ask(t, c.g, c.q, c.change); code != c.code || ok == c.silent {
			t.Errorf("%s: %v, %v", c.name, code, ok)
		}
	}
}

func TestReversed(t *testing.T) {
	for name, want := range map[string]string{
		"4.3.2.1.in-addr.arpa.": "1.2.3.4", "4.3.2.1.IN-ADDR.ARPA": "1.2.3.4",
		"1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa.": "2001:db8::1",
		"3.2.1.in-addr.arpa.": "", "5.4.3.2.1.in-addr.arpa.": "", "in-addr.arpa.": "", "x.3.2.1.in-addr.arpa.": "",
		"1.0.0.ip6.arpa.": "", "1xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx.2.ip6.arpa.": "", "": "",
	} {
		if a, ok := reversed(name); ok != (want != "") || ok && a.String() != want {
			t.Errorf("%q: %v, %v", name, a, ok)
		}
	}
}

func TestResolvConf(t *testing.T) {
	got := readResolvers(bytes.NewReader([]byte("# nameserver 9.9.9.9\nsearch x\nnameserver 127.0.0.53\nnameserver\n" +
		"nameserver fe80::1%eth0 x\nnameserver nobody\nnameserver 1.1.1.1\nnameserver 2.2.2.2\n")))
	want := []netip.AddrPort{netip.MustParseAddrPort("127.0.0.53:53"), netip.MustParseAddrPort("[fe80::1%eth0]:53"),
		netip.MustParseAddrPort("1.1.1.1:53")}
	if !slices.Equal(got, want) {
		t.Error(got)
	}
}

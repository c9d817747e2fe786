package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/splitter"
)

func prefixes(t testing.TB, list ...string) (out []netip.Prefix) {
	for _, s := range list {
		out = append(out, testkit.Must(ParsePrefix(s))(t))
	}
	return out
}

func ports(t testing.TB, s string) Ports { return testkit.Must(ParsePorts(s))(t) }

// theHost has the addresses of the interfaces, but loopback, of a host for tests.
var theHost = []netip.Addr{netip.MustParseAddr("198.51.100.7"), netip.MustParseAddr("2001:db8:7::7")}

// judging makes a gateway with a policy, on a host with the addresses of theHost, but does not start it.
func judging(t testing.TB, p Policy) *Gateway {
	o := options()
	o.Policy = p
	g := testkit.Must(newGateway(newSwitch(t), o))(t)
	g.host.read = func() ([]netip.Addr, error) { return theHost, nil }
	return g
}

// Invariant: stack/gateway: Guests reach no address that the policy refuses, in whatever form it is written.
func TestPolicy(t *testing.T) {
	open := Policy{HostPorts: AllPorts}
	for _, c := range []struct {
		name   string
		policy Policy
		rules  map[string]Rule
	}{
		{"what is built in", open, map[string]Rule{
			"192.0.2.1:80": RuleNone, "10.1.2.3:80": RuleNone, "[2001:db8::1]:80": RuleNone, "[fd00::1]:80": RuleNone,
			"[fd76:6e69::1]:80": RuleNone, "100.100.100.201:80": RuleNone, "168.63.129.17:80": RuleNone,
			"0.0.0.0:80": RuleReserved, "0.1.2.3:80": RuleReserved, "224.0.0.1:80": RuleReserved,
			"240.0.0.1:80": RuleReserved, "255.255.255.255:80": RuleReserved, "[::]:80": RuleReserved,
			"[ff02::1]:80": RuleReserved, "169.254.1.1:80": RuleLinkLocal, "[fe80::1]:80": RuleLinkLocal,
			"[febf::1]:80": RuleLinkLocal, "169.254.169.254:80": RuleMetadata, "169.254.170.2:80": RuleMetadata,
			"100.100.100.200:80": RuleMetadata, "168.63.129.16:32526": RuleMetadata, "192.0.0.192:80": RuleMetadata,
			"[fd00:ec2::254]:80": RuleMetadata, "[fd00:ec2::253]:53": RuleMetadata, "[fd20:ce::254]:80": RuleMetadata,
			"[fd00:c1::a9fe:a9fe]:80": RuleMetadata, "[fd00:42::42]:80": RuleMetadata,
			"[fd00:a9fe:a9fe::1]:80": RuleMetadata, "[fe80::a9fe:a9fe]:80": RuleMetadata,
			"127.0.0.1:80": RuleNone, "[::1]:80": RuleNone, "198.51.100.7:80": RuleNone,
		}},
		{"embedded addresses", open, map[string]Rule{
			"[::ffff:169.254.169.254]:80": RuleMetadata, "[::169.254.169.254]:80": RuleMetadata,
			"[::ffff:0:169.254.169.254]:80": RuleMetadata, "[64:ff9b::169.254.169.254]:80": RuleMetadata,
			"[64:ff9b:1::169.254.169.254]:80":            RuleMetadata, // its prefix has 96 bits
			"[64:ff9b:1:2:a9:fea9:fe00:0]:80":            RuleMetadata, // 64 bits
			"[64:ff9b:1:ffa9:fe:a9fe::]:80":              RuleMetadata, // 56 bits
			"[64:ff9b:1:a9fe:a9:fe00::]:80":              RuleMetadata, // 48 bits
			"[2002:a9fe:a9fe::1]:80":                     RuleMetadata,
			"[2001:0:a9fe:a9fe:0:ffff:3fff:fdfe]:80":     RuleMetadata, // Teredo's server
			"[2001:0:c000:201:0:ffff:5601:5601]:80":      RuleMetadata, // Teredo's client
			"[2001:db8::5efe:169.254.169.254]:80":        RuleMetadata,
			"[2001:db8::200:5efe:169.254.169.254]:80":    RuleMetadata,
			"[2002:a9fe:101:1::]:80":                     RuleLinkLocal,
			"[64:ff9b::0.0.0.0]:80":                      RuleReserved,
			"[::ffff:0.0.0.0]:80":                        RuleReserved,
			"[64:ff9b::192.0.2.1]:80":                    RuleNone,
			"[64:ff9b:1::192.0.2.1]:80":                  RuleNone, // other lengths give reserved addresses, left out
			"[64:ff9b:1:fffe::192.0.2.1]:80":             RuleNone,
			"[2002:c000:201::1]:80":                      RuleNone,
			"[::ffff:192.0.2.1]:80":                      RuleNone,
			"[2001:0:c000:201:0:ffff:3fff:fdfe]:80":      RuleNone,
			"[2001:db8::a9fe:a9fe]:80":                   RuleNone, // not a form that embeds an address
			"[2002:c000:201:1:0:5efe:169.254.169.254]:1": RuleMetadata,
		}},
		{"no ports of the host", Policy{}, map[string]Rule{
			"127.0.0.1:80": RuleHostPorts, "127.9.9.9:80": RuleHostPorts, "[::1]:80": RuleHostPorts,
			"198.51.100.7:80": RuleHostPorts, "[2001:db8:7::7]:80": RuleHostPorts,
			"198.51.100.8:80": RuleNone, "[2001:db8:7::8]:80": RuleNone,
			"[::ffff:127.0.0.1]:80": RuleHostPorts, "[::ffff:198.51.100.7]:80": RuleHostPorts,
			"[64:ff9b::198.51.100.7]:80": RuleHostPorts, "[2002:c633:6407::]:80": RuleHostPorts,
			"[::127.0.0.1]:80": RuleHostPorts, "[2001:0:c633:6407:0:ffff:3fff:fdfe]:80": RuleHostPorts,
		}},
		{"some ports of the host", Policy{HostPorts: ports(t, "22,8000-8010")}, map[string]Rule{
			"127.0.0.1:22": RuleNone, "[::1]:8000": RuleNone, "198.51.100.7:8010": RuleNone, "127.0.0.1:8011": RuleHostPorts,
			"198.51.100.7:23": RuleHostPorts, "192.0.2.1:23": RuleNone,
		}},
		{"no flag opens ports of the host but --host-ports", Policy{Allow: prefixes(t, "198.51.100.7", "127.0.0.0/8")},
			map[string]Rule{"198.51.100.7:80": RuleHostPorts, "127.0.0.1:80": RuleHostPorts}},
		{"denied", Policy{HostPorts: AllPorts, Deny: prefixes(t, "10.0.0.0/8", "2001:db8::/32", "127.0.0.1")},
			map[string]Rule{
				"10.1.1.1:80": RuleDeny, "11.1.1.1:80": RuleNone, "[2001:db8::1]:80": RuleDeny, "[64:ff9b::10.1.1.1]:80": RuleDeny,
				"[2002:a01:101::]:80": RuleDeny, "127.0.0.1:80": RuleDeny, "127.0.0.2:80": RuleNone,
			}},
		{"the longest prefix decides", Policy{Deny: prefixes(t, "0.0.0.0/0", "10.1.2.0/24", "169.254.169.254"),
			Allow: prefixes(t, "10.0.0.0/8", "10.1.2.3", "169.254.0.0/16", "100.100.100.200", "168.0.0.0/8", "240.0.0.0/4")},
			map[string]Rule{
				"192.0.2.1:80": RuleDeny, "10.9.9.9:80": RuleNone, "10.1.2.4:80": RuleDeny, "10.1.2.3:80": RuleNone,
				"169.254.1.1:80":     RuleNone,     // as long as the built-in prefix: Allow wins
				"169.254.169.254:80": RuleDeny,     // as long as the built-in prefix: Deny wins
				"169.254.170.2:80":   RuleMetadata, // the built-in prefix is longer than Allow's
				"100.100.100.200:80": RuleNone, "168.63.129.16:80": RuleMetadata, "168.63.129.17:80": RuleNone,
				"240.0.0.1:80": RuleReserved,
			}},
		{"an address in another is judged by itself", Policy{Allow: prefixes(t, "64:ff9b::/96", "::ffff:0:0:0/96")},
			map[string]Rule{"[64:ff9b::169.254.169.254]:80": RuleMetadata}},
		{"and so is what it is in", Policy{Allow: prefixes(t, "169.254.169.254"), Deny: prefixes(t, "64:ff9b::/96")},
			map[string]Rule{
				"[64:ff9b::169.254.169.254]:80": RuleDeny, "169.254.169.254:80": RuleNone,
				"[2002:a9fe:a9fe::]:80": RuleNone, "[::ffff:169.254.169.254]:80": RuleNone,
			}},
	} {
		g := judging(t, c.policy)
		for to, want := range c.rules {
			addr := netip.MustParseAddrPort(to)
			p, no := g.check(addr)
			got := RuleNone
			if no != nil {
				got = no.rule
			}
			if got != want || (no == nil) != (p.to == addr) || no != nil && (no.flag == "" || no.to != addr) {
				t.Errorf("%s: %v: %v, want %v; %v", c.name, to, got, want, no)
			}
		}
	}
}

// With the --allow or --host-ports that a refusal's message names, the address passes.
func TestRefusalsNameTheFlag(t *testing.T) {
	for to, want := range map[string]string{
		"169.254.169.254:80":            "--allow 169.254.169.254 allows it",
		"[64:ff9b::169.254.169.254]:80": "--allow 169.254.169.254 allows it",
		"[fd00:ec2::254]:80":            "--allow fd00:ec2::254 allows it",
		"169.254.1.1:80":                "--allow 169.254.1.1 allows it",
		"127.0.0.1:81":                  "--host-ports 81 allows it",
		"10.1.1.1:80":                   "--deny 10.0.0.0/8 says so",
		"224.0.0.1:80":                  "no flag allows it",
	} {
		p := Policy{Deny: prefixes(t, "10.0.0.0/8")}
		_, no := judging(t, p).check(netip.MustParseAddrPort(to))
		testkit.Equal(t, to, no.flag, want)
		words := strings.Fields(want)
		switch words[0] {
		case "--allow":
			p.Allow = prefixes(t, words[1])
		case "--host-ports":
			p.HostPorts = ports(t, words[1])
		default:
			continue
		}
		if _, no := judging(t, p).check(netip.MustParseAddrPort(to)); no != nil {
			t.Errorf("%s: %v", words, no)
		}
	}
}

// The host's addresses are used for hostAddrsAge. If they cannot be read, any address counts as the host's.
func TestHostAddressesAreReadOnceASecond(t *testing.T) {
	reads, now, list, fail := 0, time.Unix(1e9, 0), theHost, error(nil)
	g := judging(t, Policy{})
	g.host.now = func() time.Time { return now }
	g.host.read = func() ([]netip.Addr, error) {
		reads++
		return list, fail
	}
	check := func(to string, want bool) {
		t.Helper()
		_, no := g.check(netip.MustParseAddrPort(to))
		testkit.Equal(t, to, no == nil, want)
	}
	for range 1000 {
		check("198.51.100.7:80", false)
		check("203.0.113.1:80", true)
	}
	testkit.Equal(t, "readings", reads, 1)
	list = []netip.Addr{netip.MustParseAddr("::ffff:203.0.113.1")} // as an Outside in another process may write it
	now = now.Add(hostAddrsAge)
	check("198.51.100.7:80", true)
	check("203.0.113.1:80", false)
	now, fail = now.Add(hostAddrsAge), errors.New("no netlink")
	check("192.0.2.1:80", false)
	testkit.Equal(t, "readings", reads, 3)
	g.o.Policy.HostPorts = AllPorts
	check("192.0.2.1:80", true)
}

func TestPolicyIsJudgedWhereASocketIsMade(t *testing.T) {
	good4, good6 := netip.MustParseAddrPort("192.0.2.1:80"), netip.MustParseAddrPort("[2001:db8::1]:80")
	type step struct {
		frames  func(r *raw) [][]byte
		rule    Rule
		dialled string
	}
	one := func(proto byte, to string) func(r *raw) [][]byte {
		dst := netip.MustParseAddrPort(to)
		return func(r *raw) [][]byte {
			src := source(dst.Addr(), 1000)
			return [][]byte{r.packet(src.Addr(), dst.Addr(), proto, segment(proto, src, dst, []byte("body")))}
		}
	}
	// cut makes a datagram in two fragments: the first 8*cut bytes, and the bytes from 8*off on. change alters the last
	// byte of the second one.
	cut := func(to string, cut, off int, change bool) func(r *raw) [][]byte {
		dst := netip.MustParseAddrPort(to)
		return func(r *raw) [][]byte {
			src := source(dst.Addr(), 1000)
			body := segment(splitter.ProtoUDP, src, dst, noise(64, 1))
			var f [][]byte
			if dst.Addr().Is4() {
				f = fragments(r.packet(src.Addr(), dst.Addr(), splitter.ProtoUDP, body), cut, off)
			} else {
				f = r.fragments6(src.Addr(), dst.Addr(), splitter.ProtoUDP, body, cut, off)
			}
			if change {
				f[1][len(f[1])-1] ^= 1
			}
			return f
		}
	}
	routed := func(kind, left byte, via, final netip.AddrPort) func(r *raw) [][]byte {
		return func(r *raw) [][]byte {
			src, a := source(via.Addr(), 1000), final.Addr().As16()
			h := append([]byte{splitter.ProtoTCP, 2, kind, left, 0, 0, 0, 0}, a[:]...)
			return [][]byte{r.packet(src.Addr(), via.Addr(), 43, append(h, segment(splitter.ProtoTCP, src, final, nil)...)),
				r.packet(src.Addr(), via.Addr(), 43, append(h, segment(splitter.ProtoTCP, src, via, nil)...))}
		}
	}
	steps := map[string]step{
		"a good fragmented datagram": {cut("192.0.2.7:80", 2, 2, false), RuleNone, "udp 192.0.2.7:80"},
		"the same, IPv6":             {cut("[2001:db8::7]:80", 2, 2, false), RuleNone, "udp [2001:db8::7]:80"},
		"fragments":                  {cut("169.254.169.254:80", 2, 2, false), RuleMetadata, ""},
		"fragments, IPv6":            {cut("[fd00:ec2::254]:80", 2, 2, false), RuleMetadata, ""},
		"overlapping fragments":      {cut("169.254.169.254:80", 3, 2, true), RuleNone, ""},
		"overlapping, IPv6":          {cut("[fd00:ec2::254]:80", 3, 2, true), RuleNone, ""},
		"a routing header of type 0": {routed(0, 1, good6, netip.MustParseAddrPort("[fd00:ec2::254]:80")), RuleNone, ""},
		"of type 0, done with":       {routed(0, 0, netip.MustParseAddrPort("[fd00:ec2::254]:80"), good6), RuleMetadata, ""},
		"of type 4":                  {routed(4, 1, good6, netip.MustParseAddrPort("[fd00:ec2::254]:80")), RuleNone, ""},
	}
	for to, rule := range map[string]Rule{
		"169.254.169.254:80": RuleMetadata, "[fd00:ec2::254]:80": RuleMetadata, "169.254.1.1:80": RuleLinkLocal,
		"[64:ff9b::169.254.169.254]:80": RuleMetadata, "[2002:a9fe:a9fe::]:80": RuleMetadata,
		"[2001:0:c000:201:0:ffff:5601:5601]:80": RuleMetadata, "[::169.254.169.254]:80": RuleMetadata,
		"[fe80::a9fe:a9fe]:80": RuleMetadata, "[::ffff:169.254.169.254]:80": RuleNone, // the filter drops IPv4-mapped ones
		"198.51.100.7:81": RuleHostPorts, "[2001:db8:7::7]:81": RuleHostPorts, "203.0.113.9:80": RuleDeny,
		"240.0.0.1:80": RuleReserved, "10.118.110.254:81": RuleHostPorts, "[fd76:6e69::fe]:81": RuleHostPorts,
	} {
		steps["TCP to "+to] = step{one(splitter.ProtoTCP, to), rule, ""}
		steps["UDP to "+to] = step{one(splitter.ProtoUDP, to), rule, ""}
	}
	for name, c := range steps {
		t.Run(name, func(t *testing.T) {
			dialled := make(chan string, 10)
			w := newRig(t, func(o *Options) {
				o.Policy = Policy{HostPorts: ports(t, "22"), Deny: prefixes(t, "203.0.113.0/24")}
			}, func(g *Gateway) {
				g.host.read = func() ([]netip.Addr, error) { return theHost, nil }
				g.dial = func(_ context.Context, network string, to permit) (net.Conn, error) {
					dialled <- network + " " + to.to.String()
					return nil, net.ErrClosed
				}
				g.openFlow = func(_ context.Context, _ Flow, to permit) (*net.UDPConn, error) {
					dialled <- "udp " + to.to.String()
					return nil, net.ErrClosed
				}
			})
			r := w.raw(1)
			r.meet()
			for _, f := range c.frames(r) {
				r.send(f)
			}
			if c.dialled != "" {
				testkit.Equal(t, "dialled", <-dialled, c.dialled)
			}
			// A dial for an earlier frame would most likely come before these.
			for _, good := range []netip.AddrPort{good4, good6} {
				src := source(good.Addr(), 2000)
				r.mustSend(r.packet(src.Addr(), good.Addr(), splitter.ProtoTCP, segment(splitter.ProtoTCP, src, good, nil)))
				testkit.Equal(t, "dialled", <-dialled, "tcp "+good.String())
			}
			s := w.g.Stats()
			n := uint64(0)
			for rule, count := range s.Denied {
				if n += count; count > 0 && Rule(rule) != c.rule {
					t.Errorf("%d refused for %v", count, Rule(rule))
				}
			}
			if n > 1 || (n == 1) != (c.rule != RuleNone) {
				t.Errorf("%d refused: %+v", n, s)
			}
			testkit.Eventually(t, "nothing is open", func() bool { return w.g.Stats().TCPOpen+w.g.Stats().UDPOpen == 0 })
		})
	}
}

func TestOwnPortsAreNobodys(t *testing.T) {
	echoPort := echoServer(t, "tcp4").Port()
	other := echoServer(t, "tcp4").Port()
	first := echoPort - echoPort%100 // first port of a range of 100 ports that contains echoPort
	for _, c := range []struct {
		ports   string
		reached bool
	}{
		{"all", false}, {fmt.Sprint(echoPort, ",", other), true}, {"1-65535", false}, {fmt.Sprint("1-65535,", echoPort),
			true},
		{fmt.Sprintf("%d,%d-%d", other, first, first+99), true}, {fmt.Sprintf("%d,%d-%d", other, first-1, first+99), false},
	} {
		w := newRig(t, func(o *Options) {
			o.Policy.HostPorts, o.Own = ports(t, c.ports), func(port uint16) bool { return port == echoPort }
		}, func(g *Gateway) { g.host.read = func() ([]netip.Addr, error) { return theHost, nil } })
		v := w.guest(1)
		for _, to := range []netip.AddrPort{own4(echoPort), own4(other)} {
			conn, err := v.dial(to)
			if want := c.reached || to.Port() == other; (err == nil) != want {
				t.Errorf("--host-ports %s: %v: %v", c.ports, to, err)
			}
			if err == nil {
				conn.Close()
			}
		}
		_, no := w.g.check(netip.AddrPortFrom(netip.MustParseAddr("198.51.100.7"), echoPort)) // an address of the host
		testkit.Equal(t, "refused by another address", no != nil, !c.reached)
		_, no = w.g.check(netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), echoPort)) // a remote address
		testkit.Equal(t, "refused elsewhere", no != nil, false)
	}
}

func TestRefusedGuestsAreTold(t *testing.T) {
	w := newRig(t, nil)
	r := w.raw(1)
	r.meet()
	to := netip.MustParseAddrPort("169.254.169.254:80")
	r.mustSend(r.syn(netip.AddrPortFrom(addr4Of(1), 1000), to))
	r.await("reset", func(b []byte) bool {
		r.answerARP(b)
		return len(b) >= 54 && b[23] == splitter.ProtoTCP && b[47]&splitter.RST != 0 &&
			netip.AddrFrom4([4]byte(b[26:30])) == to.Addr()
	})
	r.mustSend(r.udp4(gatewayMAC, netip.AddrPortFrom(addr4Of(1), 1000), to, []byte("x")))
	r.await("ICMP", func(b []byte) bool { return len(b) >= 42 && b[23] == 1 && b[34] == 3 && b[35] == 13 })
	v := w.guest(2)
	for _, to := range []string{"169.254.169.254:80", "[fd00:ec2::254]:80"} {
		if c, err := v.dial(netip.MustParseAddrPort(to)); err == nil || !strings.Contains(err.Error(), "refused") {
			t.Errorf("%s: %v, %v", to, c, err)
		}
	}
}

// A guest gets a metadata service's addresses from a resolver, and its connections to them are refused.
func TestNamesLeadNowhereElse(t *testing.T) {
	upstream := testkit.Must(net.ListenPacket("udp4", "127.0.0.1:0"))(t)
	evil := &names{addrs: map[string][2]netip.Addr{"rebound.org": {metadata.Addr(), netip.MustParseAddr("fd00:ec2::254")}}}
	serveUDP(t, upstream, func(b []byte) [][]byte {
		var p dnsmessage.Parser
		h, err := p.Start(b)
		q, err2 := p.Question()
		if err != nil || err2 != nil {
			return nil
		}
		return [][]byte{evil.answer(&h, &q)}
	})
	w := newRig(t, nil, func(g *Gateway) {
		g.askTime = patience
		g.resolvers = func() []netip.AddrPort { return []netip.AddrPort{upstream.LocalAddr().(*net.UDPAddr).AddrPort()} }
	})
	v := w.guest(1)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	list := testkit.Must(v.resolver("udp", own4(portDNS)).LookupNetIP(ctx, "ip", "rebound.org."))(t)
	testkit.Equal(t, "addresses", len(list), 2)
	for _, a := range list {
		if _, err := v.dial(netip.AddrPortFrom(a.Unmap(), 80)); err == nil {
			t.Errorf("%v is reached", a)
		}
	}
	// There may be more than 2: a guest sends a SYN again if no answer comes within a second.
	if n := w.g.Stats().Denied[RuleMetadata]; n < 2 {
		t.Errorf("%d refused, want both", n)
	}
}

func TestResolverIsJudged(t *testing.T) {
	addr := netip.MustParseAddrPort("169.254.169.253:53")
	for _, deny := range [][]netip.Prefix{nil, prefixes(t, "10.0.0.0/8"), prefixes(t, "169.254.0.0/16"),
		prefixes(t, "169.254.169.253")} {
		for _, a := range []netip.AddrPort{addr, netip.MustParseAddrPort("127.0.0.53:53")} {
			p, no := judging(t, Policy{Deny: deny}).o.Policy.checkResolver(a)
			if refused := len(deny) > 0 && deny[0].Contains(a.Addr()); refused != (no != nil) ||
				no == nil && p.to != a {
				t.Errorf("deny %v, %v: %v", deny, a, no)
			}
		}
	}
	w := newRig(t, func(o *Options) { o.Policy.Deny = prefixes(t, "127.0.0.0/8") },
		func(g *Gateway) { g.resolvers = func() []netip.AddrPort { return newResolver(t) } })
	code, _ := ask(t, w.g, "example.org.", nil)
	testkit.Equal(t, "answer", code, dnsmessage.RCodeServerFailure)
	testkit.Equal(t, "refused", w.g.Stats().Denied[RuleDeny], 2)
}

type logged struct {
	mu   sync.Mutex
	text strings.Builder
}

func (s *logged) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(b)
}

func (s *logged) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

func TestRefusalsAreLogged(t *testing.T) {
	var log logged
	w := newRig(t, func(o *Options) {
		o.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
	})
	a, b := w.raw(1), w.raw(2)
	a.meet()
	b.meet()
	const n = 500
	for i := range uint16(n) {
		a.mustSend(a.syn(netip.AddrPortFrom(addr4Of(1), 1000+i), metadata))
	}
	b.mustSend(b.syn(netip.AddrPortFrom(addr4Of(2), 1000), metadata))
	testkit.Eventually(t, "all is refused", func() bool { return w.g.Stats().Denied[RuleMetadata] == n+1 })
	// A refusal is counted before it is logged, so its line may still be missing.
	testkit.Eventually(t, "the other guest's refusal is logged", func() bool {
		return strings.Contains(log.String(), "from=10.118.110.2:1000")
	})
	lines := strings.Split(strings.TrimSpace(log.String()), "\n")
	if len(lines) < 2 || len(lines) > 60 { // at most one line a second for each guest
		t.Fatalf("%d lines", len(lines))
	}
	want := regexp.MustCompile(`^time=\S+ level=WARN msg="refused to a guest" port=gateway guest=raw ` +
		`from=10\.118\.110\.[12]:1\d{3} to=169\.254\.169\.254:80 rule=metadata ` +
		`flag="--allow 169\.254\.169\.254 allows it"( heldBack=\d+)?$`)
	for _, l := range lines {
		if !want.MatchString(l) {
			t.Error(l)
		}
	}
}

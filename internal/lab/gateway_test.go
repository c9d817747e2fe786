package lab_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire/gateway"
)

// Invariant: lab: Connections through the gateway work in both directions.
func TestGatewayLeadsBothWays(t *testing.T) {
	testkit.LeavesNothing(t)
	host := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer host.Close()
	free := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	_, port, _ := net.SplitHostPort(free.Addr().String())
	testkit.OK(t, free.Close())
	f := testkit.Must(lab.ParseForward(port+":port1:80", "port", 2))(t)
	w := open(t, lab.Uniform(2, lab.NIC{Model: lab.Virtio}, 0),
		lab.Options{Services: []lab.Service{lab.Gateway(gateway.Options{NAT: true,
			Policy: gateway.Policy{HostPorts: gateway.AllPorts}, Forwards: []gateway.Forward{f}})}})
	g := attach(t, w.Port(1))
	defer g.Close()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	gw, _ := lab.GatewayAddrs()
	out, err := g.Dial(ctx, netip.AddrPort{}, netip.AddrPortFrom(gw.Addr(), uint16(host.Addr().(*net.TCPAddr).Port)))
	testkit.OK(t, err)
	conn := testkit.Must(host.Accept())(t)
	says(t, out, conn)
	l := testkit.Must(g.Listen(netip.AddrPortFrom(w.Port(1).Addr4.Addr(), 80)))(t)
	defer l.Close()
	in := testkit.Must(net.Dial("tcp", "127.0.0.1:"+port))(t)
	got := testkit.Must(l.Accept())(t)
	says(t, in, got)
}

// says checks that what is written to each end of a connection arrives at the other, and closes both ends.
func says(t *testing.T, a, b net.Conn) {
	t.Helper()
	for _, c := range []net.Conn{a, b} {
		_ = c.SetDeadline(time.Now().Add(testkit.Patience))
		if _, err := io.WriteString(c, "hello"); err != nil {
			t.Error(err)
		}
	}
	for _, c := range []net.Conn{a, b} {
		var got [5]byte
		if _, err := io.ReadFull(c, got[:]); err != nil || string(got[:]) != "hello" {
			t.Errorf("%q, %v", got, err)
		}
		_ = c.Close()
	}
}

func TestParseForward(t *testing.T) {
	for s, want := range map[string]string{
		"8080:80":           "tcp 127.0.0.1:8080 10.118.110.1:80",
		"tcp:8080:port2:80": "tcp 127.0.0.1:8080 10.118.110.3:80",
		"udp:53:port0:5353": "udp 127.0.0.1:53 10.118.110.1:5353",
		"":                  "",
		"80":                "",
		"8080:port3:80":     "",
		"8080:port-1:80":    "",
		"8080:guest1:80":    "",
		"0:80":              "",
		"8080:65536":        "",
		"sctp:1:2":          "",
		"a:b:c:d":           "",
	} {
		f, err := lab.ParseForward(s, "port", 3)
		got := fmt.Sprint(f.Proto, " ", f.Listen, " ", f.To)
		if err != nil {
			got = ""
		}
		if got != want {
			t.Errorf("%q: %s, %v", s, got, err)
		}
	}
}

func TestGatewayFlags(t *testing.T) {
	type flags = lab.GatewayFlags
	for _, c := range []struct {
		flags flags
		wrong string // part of the error; "": Options returns no error
		nat   bool
		ports string
	}{
		{flags{}, "", true, "22"},
		{flags{Gateway: "nat", HostPorts: "all"}, "", true, "all"},
		{flags{HostPorts: "none"}, "", true, "none"},
		{flags{HostPorts: "80,8000-8010"}, "", true, "80,8000-8010"},
		{flags{Gateway: "isolated", Forwards: []string{"80:80"}}, "", false, "22"},
		{flags{Gateway: "off"}, "", false, "22"},
		{flags{Gateway: "off", NoGateway: true}, "", false, "22"},
		{flags{Deny: []string{"10.0.0.0/8", "2001:db8::1"}, Allow: []string{"10.1.0.0/16", "169.254.169.254"}}, "", true,
			"22"},
		{flags{Allow: []string{"0.0.0.0/0", "::/0"}}, "", true, "22"},
		{flags{Gateway: "host"}, "--gateway host: nat, isolated or off", false, ""},
		{flags{Gateway: "nat", NoGateway: true}, "--no-gateway and --gateway nat: one or the other", false, ""},
		{flags{NoGateway: true, Forwards: []string{"80:80"}}, "--forward is the gateway's: not with --no-gateway", false, ""},
		{flags{Gateway: "off", Forwards: []string{"80:80"}}, "--forward is the gateway's: not with --gateway off", false, ""},
		{flags{NoGateway: true, HostPorts: "all"},
			"--host-ports is for a gateway that leads out: not with --no-gateway", false, ""},
		{flags{Gateway: "isolated", Deny: []string{"10.0.0.0/8"}},
			"--deny is for a gateway that leads out: not with --gateway isolated", false, ""},
		{flags{Gateway: "isolated", Allow: []string{"10.0.0.0/8"}},
			"--allow is for a gateway that leads out: not with --gateway isolated", false, ""},
		{flags{HostPorts: "http"}, `--host-ports "http": all, none, or ports as 80,8000-8010`, false, ""},
		{flags{HostPorts: "0"}, `--host-ports "0": all, none, or ports as 80,8000-8010`, false, ""},
		{flags{HostPorts: "80,65536"}, `--host-ports "65536": all, none, or ports as 80,8000-8010`, false, ""},
		{flags{HostPorts: "80-79"}, `--host-ports "80-79": all, none, or ports as 80,8000-8010`, false, ""},
		{flags{HostPorts: "80,"}, `--host-ports "": all, none, or ports as 80,8000-8010`, false, ""},
		{flags{Deny: []string{"example.org"}},
			"--deny example.org: not an address or network, as 192.0.2.0/24 or 2001:db8::/32", false, ""},
		{flags{Deny: []string{"10.0.0.0/33"}},
			"--deny 10.0.0.0/33: not an address or network, as 192.0.2.0/24 or 2001:db8::/32", false, ""},
		{flags{Deny: []string{"10.0.0.1/8"}}, "--deny 10.0.0.1/8: bits behind /8 are set: say 10.0.0.0/8", false, ""},
		{flags{Deny: []string{"fe80::1%eth0"}}, "--deny fe80::1%eth0: an address with a zone: leave that out", false, ""},
		{flags{Deny: []string{"::ffff:10.0.0.1"}},
			"--deny ::ffff:10.0.0.1: an IPv4 address in an IPv6 one: give the IPv4 address, which covers it", false, ""},
		{flags{Allow: []string{""}}, "--allow : not an address or network, as 192.0.2.0/24 or 2001:db8::/32", false, ""},
		{flags{Allow: []string{"224.0.0.0/8"}}, "--allow 224.0.0.0/8: no machine has such an address", false, ""},
		{flags{Allow: []string{"127.0.0.1"}}, "--allow 127.0.0.1: this machine's own ports are opened by --host-ports", false,
			""},
		{flags{Allow: []string{"10.0.0.0/8"}, Deny: []string{"10.0.0.0/8"}},
			"--allow 10.0.0.0/8 and --deny 10.0.0.0/8: one or the other", false, ""},
	} {
		o, err := c.flags.Options("port", 1, "22")
		if c.wrong != "" {
			testkit.ErrorSays(t, err, c.wrong)
			continue
		}
		if err != nil || o.NAT != c.nat || o.Policy.HostPorts.String() != c.ports ||
			len(o.Policy.Deny) != len(c.flags.Deny) || len(o.Policy.Allow) != len(c.flags.Allow) {
			t.Errorf("%+v: %+v, %v", c.flags, o, err)
		}
	}
}

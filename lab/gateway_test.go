package lab_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/lab"
	"vnic.dev/vnic/stack/gateway"
)

// A guest reaches a server of the host by the gateway's address, and the host the guest by a
// forward.
//
// Invariant: lab: The gateway leads both ways.
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
	at := testkit.Must(host.Accept())(t)
	says(t, out, at)
	l := testkit.Must(g.Listen(netip.AddrPortFrom(w.Port(1).Addr4.Addr(), 80)))(t)
	defer l.Close()
	in := testkit.Must(net.Dial("tcp", "127.0.0.1:"+port))(t)
	got := testkit.Must(l.Accept())(t)
	says(t, in, got)
}

// says has both ends of a connection say something, and closes it.
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

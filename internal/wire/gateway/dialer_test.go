package gateway

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/testkit"
)

// A Dialer checks addresses itself, because the process that asks it may be compromised.
//
// Invariant: gateway: The process that makes sockets for a confined gateway checks itself each
// address to which a socket can send.
func TestDialerJudgesByItself(t *testing.T) {
	l := testkit.Must(net.Listen("tcp4", "127.0.0.1:0"))(t)
	defer l.Close()
	open := l.Addr().(*net.TCPAddr).AddrPort()
	resolver := testkit.Must(net.ListenPacket("udp4", "127.0.0.1:0"))(t)
	defer resolver.Close()
	asked := resolver.LocalAddr().(*net.UDPAddr).AddrPort()
	forward := Forward{Proto: "udp", Listen: netip.MustParseAddrPort("127.0.0.1:0")}
	dialer := func(nat bool, ports string, deny ...string) *Dialer {
		o := Options{NAT: nat, Forwards: []Forward{forward, {Proto: "tcp", Listen: asked}}}
		o.Policy.HostPorts = testkit.Must(ParsePorts(ports))(t)
		for _, p := range deny {
			o.Policy.Deny = append(o.Policy.Deny, netip.MustParsePrefix(p))
		}
		d := NewDialer(o)
		d.resolvers = func() []netip.AddrPort { return []netip.AddrPort{asked} }
		return d
	}
	ctx := context.Background()
	check := func(what string, c interface{ Close() error }, err error, ok bool) {
		t.Helper()
		switch {
		case err == nil && c.Close() == nil && ok:
		case ok || !errors.Is(err, unix.EPERM):
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, c := range []struct {
		what    string
		d       *Dialer
		network string
		to      netip.AddrPort
		ok      bool
	}{
		{"a port of the host that is open", dialer(true, "all"), "tcp", open, true},
		{"one that is not", dialer(true, "none"), "tcp", open, false},
		{"without NAT", dialer(false, "all"), "tcp", open, false},
		{"denied", dialer(true, "all", "127.0.0.0/8"), "tcp", open, false},
		{"metadata", dialer(true, "all"), "udp", netip.MustParseAddrPort("169.254.169.254:80"), false},
		{"metadata, mapped", dialer(true, "all"), "tcp", netip.MustParseAddrPort("[::ffff:169.254.169.254]:80"), false},
		{"another protocol", dialer(true, "all"), "unix", open, false},
	} {
		conn, err := c.d.Dial(ctx, c.network, c.to)
		check(c.what, conn, err, c.ok)
	}
	conn, err := dialer(true, "none").DialResolver(ctx, "udp", asked)
	check("the resolver", conn, err, true)
	conn, err = dialer(true, "none").DialResolver(ctx, "udp", open)
	check("no resolver", conn, err, false)
	conn, err = dialer(false, "none").DialResolver(ctx, "udp", asked)
	check("the resolver without NAT", conn, err, false)
	conn, err = dialer(true, "none", "127.0.0.0/8").DialResolver(ctx, "udp", asked)
	check("the resolver, denied", conn, err, false)
	u, err := dialer(true, "none").ListenUDP(forward.Listen)
	check("a forward", u, err, true)
	u, err = dialer(true, "none").ListenUDP(asked)
	check("no forward of UDP", u, err, false)
}

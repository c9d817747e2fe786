package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"

	"vnic.dev/vnic/internal/ether"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
)

func noise(n int, seed uint64) []byte {
	b := make([]byte, n)
	var key [32]byte
	key[0], key[1] = byte(seed), byte(seed>>8)
	rand.NewChaCha8(key).Read(b)
	return b
}

type halfCloser interface {
	io.ReadWriter
	CloseWrite() error
}

// exchange sends data, closes its direction, and checks that the same data comes back.
func exchange(c halfCloser, data []byte) error {
	var eg errgroup.Group
	eg.Go(func() error {
		if _, err := c.Write(data); err != nil {
			return fmt.Errorf("write: %w", err)
		}
		return c.CloseWrite()
	})
	got, err := io.ReadAll(c)
	err = errors.Join(err, eg.Wait())
	if err == nil && !bytes.Equal(got, data) {
		err = fmt.Errorf("%d bytes came back of %d, or others", len(got), len(data))
	}
	return err
}

func TestConnectionsToTheHost(t *testing.T) {
	for _, c := range []struct {
		name, network string
		gateway       func(uint16) netip.AddrPort
		mtu           int
		link          wire.LinkOptions
	}{
		{"IPv4", "tcp4", own4, 1500, wire.LinkOptions{}},
		{"IPv6", "tcp6", own6, 1500, wire.LinkOptions{}},
		{"MTU 9000", "tcp4", own4, 9000, wire.LinkOptions{}},
		{"loss", "tcp4", own4, 1500, wire.LinkOptions{
			Up: wire.Impairment{Seed: 1, Loss: .01}, Down: wire.Impairment{Seed: 2, Loss: .01}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newRig(t, func(o *Options) { o.MTU = c.mtu })
			v := w.guest(1, c.link)
			port := echoServer(t, c.network).Port()
			var eg errgroup.Group
			for i := range 3 {
				eg.Go(func() error {
					conn, err := v.dial(c.gateway(port))
					if err != nil {
						return err
					}
					defer conn.Close()
					return exchange(conn, noise(1<<20, uint64(i)))
				})
			}
			testkit.OK(t, eg.Wait())
			if s := w.g.Stats(); s.TCPFlows != 3 || s.OutBad != 0 || s.Refused != 0 || s.Unreached != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// The gateway's dial and openFlow connect to servers on loopback instead of the guest's destination.
func TestFlowsToElsewhere(t *testing.T) {
	tcp, udp := echoServer(t, "tcp4"), udpEcho(t)
	asked := make(chan string, 10)
	v := newRig(t, nil, func(g *Gateway) {
		g.dial = func(ctx context.Context, network string, p permit) (net.Conn, error) {
			asked <- network + " " + p.to.String()
			return dialHost(ctx, network, permit{tcp})
		}
		g.openFlow = func(ctx context.Context, f Flow, p permit) (*net.UDPConn, error) {
			if f.To.Port() != 0 {
				asked <- "udp " + p.to.String()
				f.To = udp
			} else {
				f.To = netip.AddrPortFrom(udp.Addr(), 0)
			}
			return f.open(ctx)
		}
	}).guest(1)
	for _, to := range []string{"192.0.2.1:80", "[2001:db8::1]:80"} {
		c := v.mustDial(netip.MustParseAddrPort(to))
		testkit.OK(t, exchange(c, noise(100<<10, 1)))
		c.Close()
		testkit.Equal(t, "dialled", <-asked, "tcp "+to)
		u := v.dialUDP(netip.MustParseAddrPort(to))
		testkit.OK(t, exchangeDatagram(u, []byte("hello"))) // the guest drops an answer from another address
		u.Close()
		testkit.Equal(t, "dialled", <-asked, "udp "+to)
	}
}

func TestOneFamily(t *testing.T) {
	for _, c := range []struct {
		name, network string
		gateway       netip.AddrPort
		change        func(*Options)
	}{
		{"IPv4", "tcp4", own4(0), func(o *Options) { o.Prefix6 = netip.Prefix{} }},
		{"IPv6", "tcp6", own6(0), func(o *Options) { o.Prefix4 = netip.Prefix{} }},
	} {
		v := newRig(t, func(o *Options) {
			o.Hosts = nil
			c.change(o)
		}).guest(1)
		conn := v.mustDial(netip.AddrPortFrom(c.gateway.Addr(), echoServer(t, c.network).Port()))
		if err := exchange(conn, []byte("hello")); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		conn.Close()
	}
}

func guestAndHost(t *testing.T) (*gonet.TCPConn, *net.TCPConn) {
	l, port := listenTCP(t)
	guest := newRig(t, nil).guest(1).mustDial(own4(port))
	host := testkit.Must(l.Accept())(t)
	t.Cleanup(func() {
		guest.Close()
		host.Close()
	})
	return guest, host.(*net.TCPConn)
}

func TestHalfClose(t *testing.T) {
	conn, host := guestAndHost(t)
	_ = host.SetDeadline(time.Now().Add(patience))
	testkit.OK(t, conn.CloseWrite())
	if n, err := host.Read(make([]byte, 1)); err != io.EOF {
		t.Fatalf("the host reads %d, %v", n, err)
	}
	_, err := host.Write([]byte("still here"))
	testkit.OK(t, err)
	buf := make([]byte, 10)
	if _, err := io.ReadFull(conn, buf); err != nil || string(buf) != "still here" {
		t.Fatalf("the guest reads %q, %v", buf, err)
	}
	testkit.OK(t, host.CloseWrite())
	if n, err := conn.Read(buf); err != io.EOF {
		t.Fatalf("the guest reads %d, %v", n, err)
	}
}

func TestResetsArePassedOn(t *testing.T) {
	conn, host := guestAndHost(t)
	hostConn{host}.reset()
	if _, err := conn.Read(make([]byte, 1)); err == nil || err == io.EOF {
		t.Fatalf("the guest reads %v", err)
	}
}

func TestEitherLoopback(t *testing.T) {
	v := newRig(t, nil).guest(1)
	for _, network := range []string{"tcp4", "tcp6"} {
		port := echoServer(t, network).Port()
		for _, to := range []netip.AddrPort{own4(port), own6(port)} {
			c := v.mustDial(to)
			if err := exchange(c, []byte("hello")); err != nil {
				t.Errorf("%s by %v: %v", network, to, err)
			}
			c.Close()
		}
	}
}

func TestRefusedConnections(t *testing.T) {
	l, port := listenTCP(t)
	for _, c := range []struct {
		name      string
		nat, open bool
		want      bool
	}{
		{"NAT", true, true, true},
		{"no NAT", false, true, false},
		{"nobody listens", true, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if !c.open {
				l.Close()
			}
			conn, err := newRig(t, func(o *Options) { o.NAT = c.nat }).guest(1).dial(own4(port))
			if err == nil {
				conn.Close()
			}
			if (err == nil) != c.want {
				t.Errorf("dial: %v", err)
			}
			if err != nil && !strings.Contains(err.Error(), "refused") {
				t.Errorf("not refused: %v", err)
			}
		})
	}
}

func TestDatagramsToTheHost(t *testing.T) {
	w := newRig(t, nil)
	conn := w.guest(1).dialUDP(own4(udpEcho(t).Port()))
	defer conn.Close()
	for i, n := range []int{0, 1, 1400, 1472, 1473, 9000, 60000} { // those above 1472 are fragmented
		testkit.OK(t, exchangeDatagram(conn, noise(n, uint64(i))))
	}
	testkit.Equal(t, "flows", w.g.Stats().UDPFlows, 1)
}

// The test reads no answer, which may take longer than udpIdle.
func TestSilentFlowsEnd(t *testing.T) {
	w := newRig(t, nil, func(g *Gateway) { g.udpIdle = 300 * time.Millisecond })
	conn := w.guest(1).dialUDP(own4(udpEcho(t).Port()))
	defer conn.Close()
	testkit.Must(conn.Write([]byte("hello")))(t)
	testkit.Eventually(t, "a silent flow ends by itself", func() bool {
		s := w.g.Stats()
		return s.UDPFlows == 1 && s.UDPOpen == 0
	})
}

func TestForwards(t *testing.T) {
	lo := netip.MustParseAddrPort("127.0.0.1:0")
	w := newRig(t, func(o *Options) {
		o.NAT = false
		o.Forwards = []Forward{
			{"tcp", lo, netip.AddrPortFrom(addr4Of(1), 80)}, {"udp", lo, netip.AddrPortFrom(addr6Of(1), 90)},
			{"tcp", lo, netip.AddrPortFrom(addr4Of(1), 81)}, // nobody listens
		}
	})
	v, fs := w.guest(1), w.g.Forwards()
	serveTCP(t, v.listen(addr4Of(1), 80), echo)
	for i := range 2 {
		c := testkit.Must(net.Dial("tcp4", fs[0].Listen.String()))(t)
		_ = c.SetDeadline(time.Now().Add(patience))
		testkit.OK(t, exchange(c.(*net.TCPConn), noise(1<<20, uint64(i))))
		c.Close()
	}
	c, err := net.Dial("tcp4", fs[2].Listen.String())
	if err == nil { // otherwise it was reset within Dial
		_ = c.SetDeadline(time.Now().Add(patience))
		_, err = c.Read(make([]byte, 1))
		c.Close()
	}
	testkit.ErrorIs(t, err, syscall.ECONNRESET, "a forward to nowhere")

	addr := fullAddress(netip.AddrPortFrom(addr6Of(1), 90))
	u, err := gonet.DialUDP(v.ns, &addr, nil, ether.Protocol(addr6Of(1)))
	testkit.OK(t, err)
	serveUDP(t, u, sameDatagram)
	for i := range 3 {
		c := testkit.Must(net.Dial("udp4", fs[1].Listen.String()))(t)
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(patience))
		testkit.OK(t, exchangeDatagram(c, noise(700, uint64(i))))
	}
}

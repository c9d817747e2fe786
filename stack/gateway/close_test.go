package gateway

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/wire"
)

// Close ends connections in all states, in both directions, and what waits for somebody.
func TestCloseUnderTraffic(t *testing.T) {
	sw := newSwitch(t)
	o := options()
	// nobody is there
	o.Forwards = []Forward{{"tcp", netip.MustParseAddrPort("127.0.0.1:0"), netip.AddrPortFrom(addr4Of(9), 80)}}
	g := newTestGateway(t, sw, o)
	port := echoServer(t, "tcp4").Port()
	var eg errgroup.Group
	began := make(chan struct{}, 2)
	for n := range byte(2) {
		v := newGuest(t, sw, n+1, 1500, wire.LinkOptions{})
		eg.Go(func() error {
			conn, err := v.dial(own4(port))
			if err != nil {
				return err
			}
			defer conn.Close()
			go func() {
				data := noise(64<<10, 1)
				for {
					if _, err := conn.Write(data); err != nil {
						return
					}
				}
			}()
			buf := make([]byte, 64<<10)
			for i := 0; ; i++ {
				if _, err := conn.Read(buf); err != nil {
					return nil
				}
				if i == 10 {
					began <- struct{}{}
				}
			}
		})
		u := v.dialUDP(own4(udpEcho(t).Port()))
		defer u.Close()
		_, _ = u.Write([]byte("x"))
	}
	c, err := net.Dial("tcp4", g.Forwards()[0].Listen.String())
	testkit.OK(t, err)
	defer c.Close()
	<-began
	<-began
	testkit.OK(t, g.Close())
	testkit.OK(t, eg.Wait())
	if s := g.Stats(); s.TCPOpen != 0 || s.UDPOpen != 0 {
		t.Errorf("%+v", s)
	}
	testkit.OK(t, g.Close())
	// The address is free again.
	newTestGateway(t, sw, options())
}

// Connections that come and go leave nothing in netstack, so that the bound on them stays what it is.
func TestConnectionsLeaveNothing(t *testing.T) {
	sw := newSwitch(t)
	g := newTestGateway(t, sw, options())
	v := newGuest(t, sw, 1, 1500, wire.LinkOptions{})
	port := echoServer(t, "tcp4").Port()
	for i := range 50 {
		c := v.mustDial(own4(port))
		if i%2 == 0 {
			testkit.OK(t, exchange(c, []byte("hello")))
		}
		c.Close()
	}
	tcp := g.ns.Stats().TCP
	for end := time.Now().Add(patience); tcp.CurrentConnected.Value() > 0 || g.Stats().TCPOpen > 0; {
		if time.Now().After(end) {
			t.Fatalf("%d connections left, %+v", tcp.CurrentConnected.Value(), g.Stats())
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// No descriptor is left of what was open.
func TestCloseLeavesNoDescriptor(t *testing.T) {
	descriptors := func() int {
		d, err := os.ReadDir("/proc/self/fd")
		testkit.OK(t, err)
		return len(d)
	}
	var before int
	for i := range 2 { // the first time the runtime opens what it needs
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			sw := newSwitch(t)
			o := options()
			lo := netip.MustParseAddrPort("127.0.0.1:0")
			o.Forwards = []Forward{{"tcp", lo, netip.AddrPortFrom(addr4Of(1), 80)},
				{"udp", lo, netip.AddrPortFrom(addr4Of(1), 90)}}
			g := newTestGateway(t, sw, o)
			v := newGuest(t, sw, 1, 1500, wire.LinkOptions{})
			c := v.mustDial(own4(echoServer(t, "tcp4").Port()))
			u := v.dialUDP(own4(udpEcho(t).Port()))
			defer u.Close()
			_, _ = u.Write([]byte("x"))
			if _, err := u.Read(make([]byte, 1)); err != nil {
				t.Error(err)
			}
			host, err := net.Dial("udp4", g.Forwards()[1].Listen.String())
			testkit.OK(t, err)
			defer host.Close()
			_, _ = host.Write([]byte("x"))
			if err := exchange(c, []byte("hello")); err != nil {
				t.Error(err)
			}
			if err := g.Close(); err != nil {
				t.Error(err)
			}
		})
		if i == 0 {
			before = descriptors()
		}
	}
	for end := time.Now().Add(patience); descriptors() > before; { // the echo server's goroutines close theirs
		if time.Now().After(end) {
			t.Fatalf("%d descriptors, %d before", descriptors(), before)
		}
		time.Sleep(time.Millisecond)
	}
}

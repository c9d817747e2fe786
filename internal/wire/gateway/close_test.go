package gateway

import (
	"fmt"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sync/errgroup"

	"vnic.dev/vnic/internal/testkit"
)

func TestCloseUnderTraffic(t *testing.T) {
	w := newRig(t, func(o *Options) { // forwards to a guest that does not exist
		o.Forwards = []Forward{{"tcp", netip.MustParseAddrPort("127.0.0.1:0"), netip.AddrPortFrom(addr4Of(9), 80)}}
	})
	g := w.g
	port := echoServer(t, "tcp4").Port()
	var eg errgroup.Group
	began := make(chan struct{}, 2)
	var conns []net.Conn
	for n := range byte(2) {
		v := w.guest(n + 1)
		conn := v.mustDial(own4(port))
		conns = append(conns, conn)
		go func() {
			data := noise(64<<10, 1)
			for {
				if _, err := conn.Write(data); err != nil {
					return
				}
			}
		}()
		eg.Go(func() error {
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
	c := testkit.Must(net.Dial("tcp4", g.Forwards()[0].Listen.String()))(t)
	defer c.Close()
	<-began
	<-began
	testkit.OK(t, g.Close())
	for _, conn := range conns { // a reset may not have reached the guest
		conn.Close()
	}
	testkit.OK(t, eg.Wait())
	if s := g.Stats(); s.TCPOpen != 0 || s.UDPOpen != 0 {
		t.Errorf("%+v", s)
	}
	testkit.OK(t, g.Close())
	// Another gateway with the same addresses can start on the switch.
	w.start(nil)
}

func TestConnectionsLeaveNothing(t *testing.T) {
	w := newRig(t, nil)
	g, v := w.g, w.guest(1)
	port := echoServer(t, "tcp4").Port()
	for i := range 50 {
		c := v.mustDial(own4(port))
		if i%2 == 0 {
			testkit.OK(t, exchange(c, []byte("hello")))
		}
		c.Close()
	}
	tcp := g.ns.Stats().TCP
	testkit.Eventually(t, "no connection is left", func() bool {
		return tcp.CurrentConnected.Value() == 0 && g.Stats().TCPOpen == 0
	})
}

func TestCloseLeavesNoDescriptor(t *testing.T) {
	var before int
	for i := range 2 { // the first time, the runtime opens its own descriptors
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			lo := netip.MustParseAddrPort("127.0.0.1:0")
			w := newRig(t, func(o *Options) {
				o.Forwards = []Forward{{"tcp", lo, netip.AddrPortFrom(addr4Of(1), 80)},
					{"udp", lo, netip.AddrPortFrom(addr4Of(1), 90)}}
			})
			g, v := w.g, w.guest(1)
			c := v.mustDial(own4(echoServer(t, "tcp4").Port()))
			u := v.dialUDP(own4(udpEcho(t).Port()))
			defer u.Close()
			testkit.OK(t, exchangeDatagram(u, []byte("x")))
			host := testkit.Must(net.Dial("udp4", g.Forwards()[1].Listen.String()))(t)
			defer host.Close()
			_, _ = host.Write([]byte("x"))
			testkit.OK(t, exchange(c, []byte("hello")))
			testkit.OK(t, g.Close())
		})
		if i == 0 {
			before = len(testkit.FDs())
		}
	}
	// The echo server's goroutines close their descriptors later.
	testkit.Eventually(t, "as many descriptors as before", func() bool { return len(testkit.FDs()) <= before })
}

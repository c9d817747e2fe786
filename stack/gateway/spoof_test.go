package gateway

import (
	"context"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"

	"vnic.dev/vnic/internal/testkit"
)

// sources are addresses that guest 1 makes up: as many as would take all of something if each had a share of it.
func sources() (list []netip.Addr) {
	for i := range byte(16) {
		list = append(list, addr4Of(10+i))
	}
	return list
}

// spoofed has guest 1 send n frames, each from the next of its addresses.
func (r *raw) spoofed(n int, frame func(src netip.AddrPort) []byte) {
	list := sources()
	for i := range n {
		r.send(frame(netip.AddrPortFrom(list[i%len(list)], uint16(1000+i))))
	}
}

// TestSpoofedSourcesGetOneShare: what a guest may have of the gateway goes by the port that its frames come from. One
// that makes up source addresses has one share, and another guest has its own.
//
// Invariant: stack/gateway: A guest has one share of the gateway's flows, whatever addresses it sends from.
func TestSpoofedSourcesGetOneShare(t *testing.T) {
	hold := netip.MustParseAddrPort("192.0.2.1:80") // nobody answers
	silent := testkit.Must(net.ListenPacket("udp4", "127.0.0.1:0"))(t)
	defer silent.Close()
	set := func(g *Gateway) {
		g.dial = func(ctx context.Context, network string, to permit) (net.Conn, error) {
			if to.to == hold {
				<-g.ctx.Done() // ctx ends after dialTime
				return nil, g.ctx.Err()
			}
			return dialHost(ctx, network, to)
		}
		g.askTime = patience // no question is given up while the others come
		g.resolvers = func() []netip.AddrPort { return []netip.AddrPort{silent.LocalAddr().(*net.UDPAddr).AddrPort()} }
	}
	for name, flood := range map[string]func(t *testing.T, w *rig, r *raw){
		"UDP flows": func(t *testing.T, w *rig, r *raw) {
			to := own4(udpEcho(t).Port())
			r.spoofed(maxUDP, func(src netip.AddrPort) []byte { return r.udp4(gatewayMAC, src, to, []byte("x")) })
			c := w.guest(2).dialUDP(own4(udpEcho(t).Port())) // the other one's buffer may be full
			defer c.Close()
			testkit.OK(t, exchangeDatagram(c, []byte("hello")))
			testkit.Equal(t, "flows", w.g.Stats().UDPOpen, maxUDP/2+1)
			testkit.Equal(t, "refused", w.g.Stats().Refused, maxUDP/2)
		},
		"pending connections": func(t *testing.T, w *rig, r *raw) {
			r.spoofed(maxPending, func(src netip.AddrPort) []byte { return r.syn(src, hold) })
			testkit.Eventually(t, "guest 1 has its share", func() bool {
				s := w.g.Stats()
				return s.TCPOpen == maxPending/4 && s.Refused == maxPending-maxPending/4
			})
			c := w.guest(2).mustDial(own4(echoServer(t, "tcp4").Port()))
			defer c.Close()
			testkit.OK(t, exchange(c, noise(1000, 1)))
		},
		"connections": func(t *testing.T, w *rig, r *raw) {
			for range maxTCP / 2 { // guest 1 has its share
				w.g.tcp.take(owner{link: r.link.Serial()})
			}
			r.spoofed(8, func(src netip.AddrPort) []byte { return r.syn(src, own4(1)) })
			testkit.Eventually(t, "guest 1 is refused", func() bool { return w.g.Stats().Refused == 8 })
			c := w.guest(2).mustDial(own4(echoServer(t, "tcp4").Port()))
			defer c.Close()
			testkit.OK(t, exchange(c, noise(1000, 1)))
			for range maxTCP / 2 {
				w.g.tcp.give(owner{link: r.link.Serial()})
			}
		},
		"questions": func(t *testing.T, w *rig, r *raw) {
			ask := query("example.org.", dnsmessage.TypeA)
			r.spoofed(maxQuestions, func(src netip.AddrPort) []byte { return r.udp4(gatewayMAC, src, own4(portDNS), ask) })
			testkit.Eventually(t, "guest 1 has its share", func() bool {
				s := w.g.Stats()
				return s.Forwarded == maxQuestions/4 && s.Forwarded+s.Refused == maxQuestions
			})
			c := w.guest(2).dialUDP(own4(portDNS))
			defer c.Close()
			testkit.Must(c.Write(ask))(t)
			testkit.Eventually(t, "guest 2 has its own", func() bool { return w.g.Stats().Forwarded == maxQuestions/4+1 })
		},
		"connections for questions": func(t *testing.T, w *rig, r *raw) {
			for range maxDNSConns / 4 {
				w.g.dns.conns.take(owner{link: r.link.Serial()})
			}
			r.spoofed(8, func(src netip.AddrPort) []byte { return r.syn(src, own4(portDNS)) })
			testkit.Eventually(t, "guest 1 is refused", func() bool { return w.g.Stats().Refused == 8 })
			w.guest(2).mustDial(own4(portDNS)).Close()
			for range maxDNSConns / 4 {
				w.g.dns.conns.give(owner{link: r.link.Serial()})
			}
		},
		"datagrams that wait": func(t *testing.T, w *rig, r *raw) {
			in, held := make(chan datagram), make(chan bool)
			defer close(held)
			handle := func(_ *datagramServer, d datagram) {
				select {
				case in <- d:
				case <-held:
				}
			}
			at := own4(999)
			testkit.OK(t, w.g.serveDatagrams(fullAddress(at), ipv4.ProtocolNumber, handle))
			r.spoofed(maxWaiting, func(src netip.AddrPort) []byte { return r.udp4(gatewayMAC, src, at, []byte("x")) })
			testkit.Eventually(t, "all have come", func() bool { // one is with handle, if it was quick
				return w.g.Stats().Refused >= maxWaiting-maxWaiting/4-1
			})
			v := w.guest(2).dialUDP(at)
			defer v.Close()
			testkit.Must(v.Write([]byte("hello")))(t)
			from := map[owner]int{}
			for d := range in {
				if from[d.sender]++; string(d.data) == "hello" {
					break
				}
			}
			mine := owner{link: r.link.Serial()}
			// one of them waits with handle, and has no share any more
			if n := from[mine]; n < maxWaiting/4 || n > maxWaiting/4+1 || len(from) != 2 {
				t.Errorf("%v came before it", from)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newRig(t, nil, set)
			r := w.raw(1)
			r.meet()
			flood(t, w, r)
		})
	}
}

// What forwards lead to a guest, and what it asks for itself, is one share.
func TestForwardsCountForTheirGuest(t *testing.T) {
	w := newRig(t, nil)
	r := w.raw(1)
	r.meet()
	testkit.Equal(t, "owner", w.g.ownerOf(addr4Of(1)), owner{link: r.link.Serial()})
	testkit.Equal(t, "owner", w.g.ownerOf(addr6Of(1)), owner{link: r.link.Serial()})
	testkit.Equal(t, "owner of what nobody has sent from", w.g.ownerOf(addr4Of(2)), owner{addr: addr4Of(2)})
}

// query is a question.
func query(name string, t dnsmessage.Type) []byte {
	b := dnsmessage.NewBuilder(nil, dnsmessage.Header{ID: 7, RecursionDesired: true})
	_ = b.StartQuestions()
	_ = b.Question(dnsmessage.Question{Name: dnsmessage.MustNewName(name), Type: t, Class: dnsmessage.ClassINET})
	out, _ := b.Finish()
	return out
}

package gateway

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"

	"vnic.dev/vnic/internal/testkit"
)

// sources returns 16 addresses in the gateway's network that no Host has, for guest 1 to send from.
func sources() (list []netip.Addr) {
	for i := range byte(16) {
		list = append(list, addr4Of(10+i))
	}
	return list
}

func (r *raw) spoofed(n int, frame func(src netip.AddrPort) []byte) {
	list := sources()
	for i := range n {
		r.send(frame(netip.AddrPortFrom(list[i%len(list)], uint16(1000+i))))
	}
}

func (q *quota) has(r *raw) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.shares.by[owner{link: r.link.Serial()}])
}

// takeAll takes all entries of a quota for a guest. It returns a counter of the entries that the quota ends later.
func (r *raw) takeAll(q *quota) *atomic.Int32 {
	var ended atomic.Int32
	for range q.shares.all {
		q.take(owner{link: r.link.Serial()}, func() { ended.Add(1) })
	}
	return &ended
}

// Invariant: stack/gateway: A guest has one share of the gateway's flows, whatever addresses it
// sends from.
func TestSpoofedSourcesGetOneShare(t *testing.T) {
	hold := netip.MustParseAddrPort("192.0.2.1:80") // dial, below, never connects to it
	silent := testkit.Must(net.ListenPacket("udp4", "127.0.0.1:0"))(t)
	defer silent.Close()
	set := func(g *Gateway) {
		g.dial = func(ctx context.Context, network string, to permit) (net.Conn, error) {
			if to.to == hold {
				<-g.ctx.Done() // not ctx's, which ends earlier after limits.Dial or by eviction
				return nil, g.ctx.Err()
			}
			return dialHost(ctx, network, to)
		}
		g.askTime = patience // so that no question times out while more arrive
		g.resolvers = func() []netip.AddrPort { return []netip.AddrPort{silent.LocalAddr().(*net.UDPAddr).AddrPort()} }
	}
	for name, flood := range map[string]func(t *testing.T, w *rig, r *raw){
		"UDP flows": func(t *testing.T, w *rig, r *raw) {
			to := own4(udpEcho(t).Port())
			r.spoofed(maxUDP+8, func(src netip.AddrPort) []byte { return r.udp4(gatewayMAC, src, to, []byte("x")) })
			testkit.Eventually(t, "guest 1 has all, and gives up its own for more", func() bool {
				s := w.g.Stats()
				return s.UDPOpen == maxUDP && s.Evicted == 8 && s.Refused == 0
			})
			c := w.guest(2).dialUDP(own4(udpEcho(t).Port())) // the first server's buffer may be full
			defer c.Close()
			testkit.OK(t, exchangeDatagram(c, []byte("hello")))
			testkit.Equal(t, "flows", w.g.Stats().UDPOpen, maxUDP)
			testkit.Equal(t, "flows of guest 1", w.g.udp.has(r), maxUDP-1)
		},
		"pending connections": func(t *testing.T, w *rig, r *raw) {
			r.spoofed(maxPending+8, func(src netip.AddrPort) []byte { return r.syn(src, hold) })
			testkit.Eventually(t, "guest 1 has all", func() bool {
				s := w.g.Stats()
				return s.TCPOpen == maxPending && s.Refused == 8
			})
			c := w.guest(2).mustDial(own4(echoServer(t, "tcp4").Port()))
			defer c.Close()
			testkit.OK(t, exchange(c, noise(1000, 1)))
			testkit.Equal(t, "evicted", w.g.Stats().Evicted, 1)
		},
		"connections": func(t *testing.T, w *rig, r *raw) {
			ended := r.takeAll(w.g.tcp)
			r.spoofed(8, func(src netip.AddrPort) []byte { return r.syn(src, own4(1)) })
			testkit.Eventually(t, "guest 1 is refused", func() bool { return w.g.Stats().Refused == 8 })
			c := w.guest(2).mustDial(own4(echoServer(t, "tcp4").Port()))
			defer c.Close()
			testkit.OK(t, exchange(c, noise(1000, 1)))
			testkit.Equal(t, "connections of guest 1 that ended", ended.Load(), 1)
		},
		"questions": func(t *testing.T, w *rig, r *raw) {
			ask := query("example.org.", dnsmessage.TypeA)
			r.spoofed(maxQuestions+8, func(src netip.AddrPort) []byte { return r.udp4(gatewayMAC, src, own4(portDNS), ask) })
			testkit.Eventually(t, "guest 1 has all", func() bool {
				s := w.g.Stats()
				return s.Forwarded == maxQuestions && s.Refused == 8
			})
			c := w.guest(2).dialUDP(own4(portDNS))
			defer c.Close()
			testkit.Must(c.Write(ask))(t)
			testkit.Eventually(t, "guest 2 has its own", func() bool { return w.g.Stats().Forwarded == maxQuestions+1 })
			testkit.Equal(t, "evicted", w.g.Stats().Evicted, 1)
		},
		"connections for questions": func(t *testing.T, w *rig, r *raw) {
			ended := r.takeAll(w.g.dns.conns)
			r.spoofed(8, func(src netip.AddrPort) []byte { return r.syn(src, own4(portDNS)) })
			testkit.Eventually(t, "guest 1 is refused", func() bool { return w.g.Stats().Refused == 8 })
			w.guest(2).mustDial(own4(portDNS)).Close()
			testkit.Eventually(t, "one of guest 1's has ended", func() bool { return ended.Load() == 1 })
		},
		"datagrams that wait": func(t *testing.T, w *rig, r *raw) {
			in, held, first := make(chan datagram), make(chan bool), make(chan bool)
			defer close(held)
			begin := sync.OnceFunc(func() { close(first) })
			handle := func(_ *datagramServer, d datagram) {
				begin()
				select {
				case in <- d:
				case <-held:
				}
			}
			addr := own4(999)
			testkit.OK(t, w.g.serveDatagrams(fullAddress(addr), ipv4.ProtocolNumber, handle))
			frame := func(src netip.AddrPort) []byte { return r.udp4(gatewayMAC, src, addr, []byte("x")) }
			r.spoofed(1, frame)
			<-first
			r.spoofed(maxWaiting+8, frame)
			testkit.Eventually(t, "all have come", func() bool { return w.g.Stats().Refused == 8 })
			v := w.guest(2).dialUDP(addr)
			defer v.Close()
			testkit.Must(v.Write([]byte("hello")))(t)
			testkit.Eventually(t, "it has a place", func() bool { return w.g.Stats().Evicted == 1 })
			before := 0
			for d := range in {
				if string(d.data) == "hello" {
					break
				}
				before++
			}
			if before > 2 { // handle had one already, and the next turn may be guest 1's
				t.Errorf("%d of guest 1 came before it", before)
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

func TestForwardsCountForTheirGuest(t *testing.T) {
	w := newRig(t, nil)
	r := w.raw(1)
	r.meet()
	testkit.Equal(t, "owner", w.g.ownerOf(addr4Of(1)), owner{link: r.link.Serial()})
	testkit.Equal(t, "owner", w.g.ownerOf(addr6Of(1)), owner{link: r.link.Serial()})
	testkit.Equal(t, "owner of what nobody has sent from", w.g.ownerOf(addr4Of(2)), owner{addr: addr4Of(2)})
}

func query(name string, t dnsmessage.Type) []byte {
	b := dnsmessage.NewBuilder(nil, dnsmessage.Header{ID: 7, RecursionDesired: true})
	_ = b.StartQuestions()
	_ = b.Question(dnsmessage.Question{Name: dnsmessage.MustNewName(name), Type: t, Class: dnsmessage.ClassINET})
	out, _ := b.Finish()
	return out
}

func TestEvictedConnectionsDelayNobody(t *testing.T) {
	hold := netip.MustParseAddrPort("192.0.2.1:80")
	w := newRig(t, nil, func(g *Gateway) {
		g.dial = func(context.Context, string, permit) (net.Conn, error) {
			<-g.ctx.Done() // not when the dial's own context ends
			return nil, g.ctx.Err()
		}
	})
	r, other := w.raw(1), w.raw(2)
	r.meet()
	other.meet()
	r.spoofed(maxPending, func(src netip.AddrPort) []byte { return r.syn(src, hold) })
	testkit.Eventually(t, "guest 1 has all", func() bool { return w.g.Stats().TCPOpen == maxPending })
	const n = 20
	other.spoofed(n, func(src netip.AddrPort) []byte {
		return other.syn(netip.AddrPortFrom(addr4Of(2), src.Port()), hold)
	})
	testkit.Eventually(t, "guest 2 has its own", func() bool { return w.g.Stats().TCPOpen == maxPending+n })
	testkit.Equal(t, "evicted", w.g.Stats().Evicted, n)
}

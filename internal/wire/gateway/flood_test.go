package gateway

import (
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"vnic.dev/vnic/internal/ether"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/splitter"
)

func TestFloodOfFragments(t *testing.T) {
	w := newRig(t, nil)
	r := w.raw(1)
	to := own4(udpEcho(t).Port())
	frame := r.udp4(gatewayMAC, netip.AddrPortFrom(addr4Of(1), 1000), to, make([]byte, 1400))
	ip := header.IPv4(frame[14:34])
	r.meet()
	for i := range uint16(10000) { // 14 MB
		ip.SetID(i)
		ip.SetFlagsFragmentOffset(header.IPv4FlagMoreFragments, (i%40)*1400/8*8)
		ip.SetChecksum(0)
		ip.SetChecksum(^ip.CalculateChecksum())
		r.mustSend(frame)
	}
	conn := w.guest(2).dialUDP(to)
	defer conn.Close()
	testkit.OK(t, exchangeDatagram(conn, noise(5000, 1)))
	testkit.Equal(t, "flows", w.g.Stats().UDPFlows, 1)
}

func TestFloodOfConnections(t *testing.T) {
	w := newRig(t, nil)
	r := w.raw(1)
	r.meet()
	to := own4(echoServer(t, "tcp4").Port())
	for i := range uint16(2 * maxPending) {
		r.send(r.syn(netip.AddrPortFrom(addr4Of(1), 1000+i), to))
	}
	r.await("refusal", func(b []byte) bool {
		r.answerARP(b)
		return b[12] == 8 && b[13] == 0 && b[23] == 6 && b[47]&4 != 0 // RST
	})
	conn := w.guest(2).mustDial(to)
	defer conn.Close()
	testkit.OK(t, exchange(conn, noise(100<<10, 1)))
	if s := w.g.Stats(); s.TCPOpen > maxPending+1 || s.Refused == 0 {
		t.Errorf("%+v", s)
	}
}

// A guest that has not confirmed the end of as many connections as are allowed gets no new ones; another guest does.
func TestUnfinishedConnectionsAreShared(t *testing.T) {
	const n = 4
	w := newRig(t, nil, func(g *Gateway) { g.unfinished.shares.all = n })
	to := own4(echoServer(t, "tcp4").Port())
	w.lose = func(p *wire.Packet) bool { return p.Meta.Headers.TCPFlags&splitter.FIN != 0 }
	v := w.guest(1)
	w.lose = nil
	for i := range n {
		c := v.mustDial(to)
		testkit.OK(t, c.CloseWrite())
		testkit.Eventually(t, "the gateway has closed it", func() bool { return w.g.Stats().TCPOpen == 0 })
		testkit.Equal(t, "unfinished", w.g.unfinished.len(), i+1)
		defer c.Close()
	}
	for _, addr := range []netip.AddrPort{to, own4(portDNS)} {
		if _, err := v.dial(addr); err == nil || !strings.Contains(err.Error(), "refused") {
			t.Errorf("%v: %v", addr, err)
		}
	}
	c := w.guest(2).mustDial(to)
	defer c.Close()
	testkit.OK(t, exchange(c, noise(1000, 1)))
}

func TestConnectionsInTimeWaitMakeRoom(t *testing.T) {
	const n = 4
	w := newRig(t, nil, func(g *Gateway) { g.unfinished.shares.all = n })
	timeWait := tcpip.TCPTimeWaitTimeoutOption(time.Hour) // none expires during the test
	testkit.OK(t, ether.SetTCP(w.g.ns, &timeWait))
	l, port := listenTCP(t)
	serveTCP(t, l, func(c net.Conn) {}) // the host closes first
	v := w.guest(1)
	for i := range 3 * n {
		c := v.mustDial(own4(port))
		if _, err := c.Read(make([]byte, 1)); err != io.EOF {
			t.Fatal(err)
		}
		c.Close()
		testkit.Eventually(t, "the gateway has closed it", func() bool {
			return w.g.Stats().TCPOpen == 0 && w.g.unfinished.len() == min(i+1, n)
		})
	}
	testkit.Equal(t, "refused", w.g.Stats().Refused, 0)
}

func (u *unfinished) len() (n int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, list := range u.shares.by {
		n += len(list)
	}
	return n
}

func TestFlowsEndWithTheirGuest(t *testing.T) {
	for name, ends := range map[string]func(*rig, *guest){
		"restart": func(_ *rig, v *guest) { v.link.Restarted() },
		"detach":  func(w *rig, v *guest) { testkit.OK(t, w.sw.Detach(v.link)) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newRig(t, nil)
			v, other := w.guest(1), w.guest(2)
			tcp, udp := own4(echoServer(t, "tcp4").Port()), own4(udpEcho(t).Port())
			const n = 20
			stays := other.mustDial(tcp)
			defer stays.Close()
			for range n {
				c, u := v.mustDial(tcp), v.dialUDP(udp)
				defer c.Close()
				defer u.Close()
				testkit.OK(t, exchangeDatagram(u, []byte("hello")))
			}
			r := &raw{link: v.link}
			ended := r.takeAll(w.g.dns.asked)
			testkit.Eventually(t, "all are open", func() bool { return w.g.Stats().TCPOpen == n+1 })
			ends(w, v)
			testkit.Equal(t, "questions that ended", ended.Load(), maxQuestions)
			testkit.Eventually(t, "another guest's is left", func() bool {
				s := w.g.Stats()
				return s.TCPOpen == 1 && s.UDPOpen == 0 && len(w.g.flows.keys()) == 0
			})
			testkit.OK(t, exchange(stays, []byte("hello")))
			if name == "restart" {
				c := v.mustDial(tcp)
				defer c.Close()
				testkit.OK(t, exchange(c, []byte("hello")))
			}
		})
	}
}

func (fs *flows) keys() (list []flowKey) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for k := range fs.byKey {
		list = append(list, k)
	}
	return list
}

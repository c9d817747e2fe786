package gateway

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"vnic.dev/vnic/internal/ether"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/splitter"
)

func (v *guest) unconnected(addr netip.AddrPort) *gonet.UDPConn {
	v.t.Helper()
	a := fullAddress(addr)
	c, err := gonet.DialUDP(v.ns, &a, nil, ether.Protocol(addr.Addr()))
	testkit.OK(v.t, err)
	v.t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	return c
}

func hostUDP(t testing.TB, ip net.IP) *net.UDPConn {
	t.Helper()
	c, err := net.ListenUDP("udp", &net.UDPAddr{IP: ip})
	testkit.OK(t, err)
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	return c
}

func portOf(c interface{ LocalAddr() net.Addr }) uint16 {
	return c.LocalAddr().(*net.UDPAddr).AddrPort().Port()
}

// loopbacks are the host's loopback addresses. gateway returns the address and port by which guests reach a port of
// the loopback, addr the address of a guest by its number, both of the same family as ip.
var loopbacks = []struct {
	name    string
	ip      net.IP
	gateway func(uint16) netip.AddrPort
	addr    func(byte) netip.Addr
}{{"IPv4", net.IPv4(127, 0, 0, 1), own4, addr4Of}, {"IPv6", net.IPv6loopback, own6, addr6Of}}

func forwardUDP(to netip.AddrPort) func(*Options) {
	return func(o *Options) {
		o.Forwards = []Forward{{"udp", netip.MustParseAddrPort("127.0.0.1:0"), to}}
	}
}

// hears reads the next datagram at c, checks its content, and returns its sender.
func hears(t testing.TB, c net.PacketConn, want string) netip.AddrPort {
	t.Helper()
	b := make([]byte, 2048)
	n, from, err := c.ReadFrom(b)
	testkit.OK(t, err)
	testkit.Equal(t, "datagram", string(b[:n]), want)
	a := from.(*net.UDPAddr).AddrPort()
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// Servers may answer from another port than the one that was asked, as TFTP servers do (RFC 1350, 4).
func TestServersAnswerFromAnotherPort(t *testing.T) {
	for _, l := range loopbacks {
		t.Run(l.name, func(t *testing.T) {
			w := newRig(t, nil)
			c := w.guest(1).unconnected(netip.AddrPortFrom(l.addr(1), 2000))
			well, transfer := hostUDP(t, l.ip), hostUDP(t, l.ip)
			testkit.Must(c.WriteTo([]byte("read"), net.UDPAddrFromAddrPort(l.gateway(portOf(well)))))(t)
			from := hears(t, well, "read")
			testkit.Must(transfer.WriteToUDPAddrPort([]byte("data"), from))(t)
			testkit.Equal(t, "answer from", hears(t, c, "data"), l.gateway(portOf(transfer)))
			testkit.Must(c.WriteTo([]byte("ack"), net.UDPAddrFromAddrPort(l.gateway(portOf(transfer)))))(t)
			testkit.Equal(t, "ack from", hears(t, transfer, "ack"), from)
			testkit.Must(transfer.WriteToUDPAddrPort([]byte("more"), from))(t)
			hears(t, c, "more")
			testkit.Must(well.WriteToUDPAddrPort([]byte("first port"), from))(t)
			testkit.Equal(t, "answer from", hears(t, c, "first port"), l.gateway(portOf(well)))
			testkit.Equal(t, "flows", w.g.Stats().UDPFlows, 1)
		})
	}
}

func TestOthersHaveNoWayIn(t *testing.T) {
	w := newRig(t, nil)
	c := w.guest(1).unconnected(netip.AddrPortFrom(addr4Of(1), 2000))
	well, other := hostUDP(t, net.IPv4(127, 0, 0, 1)), hostUDP(t, net.IPv4(127, 0, 0, 2))
	testkit.Must(c.WriteTo([]byte("read"), net.UDPAddrFromAddrPort(own4(portOf(well)))))(t)
	from := hears(t, well, "read")
	testkit.Must(other.WriteToUDPAddrPort([]byte("mine"), from))(t)
	testkit.Must(well.WriteToUDPAddrPort([]byte("data"), from))(t)
	hears(t, c, "data")
}

func TestGuestsAnswerFromAnotherPort(t *testing.T) {
	w := newRig(t, func(o *Options) {
		o.NAT = false
		o.Forwards = []Forward{{"udp", netip.MustParseAddrPort("127.0.0.1:0"), netip.AddrPortFrom(addr4Of(1), 69)}}
	})
	v := w.guest(1)
	well := v.unconnected(netip.AddrPortFrom(addr4Of(1), 69))
	transfer := v.unconnected(netip.AddrPortFrom(addr4Of(1), 3000))
	c, addr := hostUDP(t, net.IPv4(127, 0, 0, 1)), w.g.Forwards()[0].Listen
	testkit.Must(c.WriteToUDPAddrPort([]byte("read"), addr))(t)
	asker := net.UDPAddrFromAddrPort(hears(t, well, "read"))
	testkit.Must(transfer.WriteTo([]byte("data"), asker))(t)
	from := hears(t, c, "data")
	if from == addr || from.Addr() != addr.Addr() {
		t.Errorf("it comes from %v", from)
	}
	testkit.Must(c.WriteToUDPAddrPort([]byte("ack"), from))(t)
	testkit.Equal(t, "ack from", hears(t, transfer, "ack").String(), asker.String())
	testkit.Must(well.WriteTo([]byte("first port"), asker))(t)
	testkit.Equal(t, "answer from", hears(t, c, "first port"), addr)
	testkit.Must(c.WriteToUDPAddrPort([]byte("again"), addr))(t)
	testkit.Equal(t, "again from", hears(t, well, "again").String(), asker.String())
}

// isUnreachable reports whether a frame is an ICMP error "port unreachable" (RFC 792; RFC 4443, 3.1) about a datagram
// with this source and destination.
func isUnreachable(b []byte, from, to netip.AddrPort) bool {
	if to.Addr().Is4() {
		if len(b) < 70 || b[12] != 8 || b[13] != 0 || b[23] != protoICMP || b[34] != 3 || b[35] != 3 {
			return false
		}
		ip, udp := header.IPv4(b[42:62]), header.UDP(b[62:70])
		return checksumOf(b[34:]) == 0xffff && addrPort(ip.SourceAddress(), udp.SourcePort()) == from &&
			addrPort(ip.DestinationAddress(), udp.DestinationPort()) == to
	}
	if len(b) < 110 || b[12] != 0x86 || b[20] != protoICMPv6 || b[54] != 1 || b[55] != 4 {
		return false
	}
	ip, udp := header.IPv6(b[62:102]), header.UDP(b[102:110])
	return addrPort(ip.SourceAddress(), udp.SourcePort()) == from &&
		addrPort(ip.DestinationAddress(), udp.DestinationPort()) == to
}

func TestUnreachablePortsAreTold(t *testing.T) {
	w := newRig(t, nil)
	r := w.raw(1)
	r.meet()
	c := hostUDP(t, net.IPv4(127, 0, 0, 1))
	from, to := netip.AddrPortFrom(addr4Of(1), 2000), own4(portOf(c))
	addr := c.LocalAddr().(*net.UDPAddr)
	frame := r.udp4(gatewayMAC, from, to, []byte("hello"))
	r.mustSend(frame)
	first := hears(t, c, "hello")
	c.Close()
	r.mustSend(frame)
	r.await("ICMP port unreachable", func(b []byte) bool {
		r.answerARP(b)
		return isUnreachable(b, from, to) && netip.AddrFrom4([4]byte(b[26:30])) == to.Addr()
	})
	c, err := net.ListenUDP("udp4", addr)
	testkit.OK(t, err)
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	r.mustSend(frame)
	testkit.Equal(t, "source port after an error", hears(t, c, "hello"), first)
	testkit.Equal(t, "flows", w.g.Stats().UDPFlows, 1)
}

func TestUnreachablePortsAreToldToStacks(t *testing.T) {
	for _, l := range loopbacks {
		c := hostUDP(t, l.ip)
		u := newRig(t, nil).guest(1).dialUDP(l.gateway(portOf(c)))
		c.Close()
		testkit.Eventually(t, l.name+": its stack hears of it", func() bool {
			_, err := u.Write([]byte("hello"))
			return err != nil && strings.Contains(err.Error(), "refused")
		})
		u.Close()
	}
}

// A datagram arrives although earlier ones met a closed port, whose ICMP errors the gateway's socket receives.
func TestServersMayComeLate(t *testing.T) {
	for _, l := range loopbacks {
		for _, early := range []int{1, 3} {
			t.Run(fmt.Sprintf("%s, behind %d", l.name, early), func(t *testing.T) {
				w := newRig(t, nil)
				v := w.guest(1)
				for range 20 {
					c := hostUDP(t, l.ip)
					addr := c.LocalAddr().(*net.UDPAddr)
					c.Close()
					u := v.unconnected(netip.AddrPortFrom(l.addr(1), 0))
					to := net.UDPAddrFromAddrPort(l.gateway(uint16(addr.Port)))
					for range early {
						testkit.Must(u.WriteTo([]byte("early"), to))(t)
					}
					c, err := net.ListenUDP("udp", addr)
					if errors.Is(err, syscall.EADDRINUSE) { // another process has the port now
						continue
					}
					testkit.OK(t, err)
					_ = c.SetDeadline(time.Now().Add(patience))
					testkit.Must(u.WriteTo([]byte("second"), to))(t)
					for b := make([]byte, 10); string(b) != "second"; b = b[:10] {
						n, _, err := c.ReadFromUDPAddrPort(b)
						testkit.OK(t, err)
						b = b[:n]
						if string(b) == "second" {
							break
						}
					}
					c.Close()
					u.Close()
				}
			})
		}
	}
}

func TestGuestsMayComeLate(t *testing.T) {
	addr := netip.AddrPortFrom(addr4Of(1), 90)
	w := newRig(t, forwardUDP(addr))
	v := w.guest(1)
	for range 20 {
		c := testkit.Must(net.Dial("udp4", w.g.Forwards()[0].Listen.String()))(t)
		testkit.Must(c.Write([]byte("early")))(t)
		l := v.unconnected(addr)
		testkit.Must(c.Write([]byte("second")))(t)
		b := make([]byte, 10)
		for n := 0; string(b[:n]) != "second"; {
			var err error
			n, _, err = l.ReadFrom(b)
			testkit.OK(t, err)
		}
		l.Close()
		c.Close()
	}
}

type clock struct{ since atomic.Int64 }

func (c *clock) now() time.Time          { return epoch.Add(time.Duration(c.since.Load())) }
func (c *clock) advance(d time.Duration) { c.since.Add(int64(d)) }
func (c *clock) set(g *Gateway)          { g.now = c.now }
func (w *rig) sweep()                    { w.g.flows.sweep(w.g) }

// A flow ends after flowIdle without a datagram (RFC 4787, REQ-5), and not before.
func TestFlowsLiveForTwoMinutes(t *testing.T) {
	inner := netip.AddrPortFrom(addr4Of(1), 90)
	var time clock
	w := newRig(t, forwardUDP(inner), time.set)
	v := w.guest(1)
	server := hostUDP(t, net.IPv4(127, 0, 0, 1))
	u := v.dialUDP(own4(portOf(server)))
	defer u.Close()
	testkit.Must(u.Write([]byte("first")))(t)
	from := hears(t, server, "first")
	l := v.unconnected(inner)
	client := testkit.Must(net.Dial("udp4", w.g.Forwards()[0].Listen.String()))(t)
	defer client.Close()
	testkit.Must(client.Write([]byte("ask")))(t)
	asker := net.UDPAddrFromAddrPort(hears(t, l, "ask"))
	for range 2 {
		time.advance(flowIdle - 1)
		w.sweep()
		testkit.Must(server.WriteToUDPAddrPort([]byte("news"), from))(t)
		b := make([]byte, 10)
		n := testkit.Must(u.Read(b))(t)
		testkit.Equal(t, "news", string(b[:n]), "news")
		testkit.Must(u.Write([]byte("second")))(t)
		testkit.Equal(t, "source port", hears(t, server, "second"), from)
		testkit.Must(l.WriteTo([]byte("late answer"), asker))(t)
		n = testkit.Must(client.Read(b))(t)
		testkit.Equal(t, "late answer", string(b[:n]), "late answe")
	}
	time.advance(flowIdle)
	w.sweep()
	testkit.Eventually(t, "both flows end", func() bool { return w.g.Stats().UDPOpen == 0 })
}

// A guest asks from a new port each time, as a resolver does (RFC 5452).
func TestManyShortFlows(t *testing.T) {
	var time clock
	w := newRig(t, nil, time.set)
	v := w.guest(1)
	to := own4(udpEcho(t).Port())
	long := v.dialUDP(to)
	defer long.Close()
	for range 2 {
		testkit.OK(t, exchangeDatagram(long, []byte("hello")))
	}
	const more = 40
	for range maxUDP - 1 + more {
		time.advance(50e6) // 20 a second
		u := v.dialUDP(to)
		testkit.OK(t, exchangeDatagram(u, []byte("question")))
		u.Close()
	}
	testkit.OK(t, exchangeDatagram(long, []byte("still here")))
	s := w.g.Stats()
	if s.UDPFlows <= maxUDP || s.Evicted != s.UDPFlows-maxUDP { // the guest may pick a port twice
		t.Errorf("%d flows, %d evicted", s.UDPFlows, s.Evicted)
	}
	testkit.Equal(t, "refused", s.Refused, 0)
}

func TestTheMostSilentFlowGoes(t *testing.T) {
	var time clock
	w := newRig(t, nil, time.set, func(g *Gateway) { g.udp.shares.all = 4 })
	v, to := w.guest(1), own4(udpEcho(t).Port())
	conns := make([]*gonet.UDPConn, 4)
	for i := range conns {
		conns[i] = v.dialUDP(to)
		defer conns[i].Close()
		for range 2 {
			testkit.OK(t, exchangeDatagram(conns[i], []byte("hello")))
		}
		time.advance(1e9)
	}
	testkit.OK(t, exchangeDatagram(conns[0], []byte("again"))) // now flow 1 has been silent longest
	silent := conns[1].LocalAddr().(*net.UDPAddr).AddrPort()
	other := w.guest(2).dialUDP(to)
	defer other.Close()
	testkit.OK(t, exchangeDatagram(other, []byte("hello")))
	w.g.flows.mu.Lock()
	defer w.g.flows.mu.Unlock()
	for key := range w.g.flows.byKey {
		if key.guest == silent {
			t.Errorf("%v is there, which was silent for longest", silent)
		}
	}
	testkit.Equal(t, "flows", len(w.g.flows.byKey), 4)
}

var bursts = []struct{ n, size int }{{4, 1400}, {128, 1400}, {128, 8192}, {16, 8192}, {4, 65507}}

// count receives datagrams at c, and returns how many had the size. It ends when n have come, or at a pause when the
// received and the lost ones make n, or patience ends.
func count(t *testing.T, c net.PacketConn, n, size int, lost func() int) (came int) {
	t.Helper()
	b, end := make([]byte, 64<<10), time.Now().Add(patience)
	defer func() { _ = c.SetReadDeadline(end) }()
	for came < n {
		_ = c.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		k, _, err := c.ReadFrom(b)
		if err == nil && k == size {
			came++
		}
		if err != nil && (came+lost() >= n || time.Now().After(end)) {
			break
		}
	}
	return came
}

// takesBursts reports whether this machine's kernel grants a socket a receive buffer (SO_RCVBUF) of at least 4 MiB,
// which bursts need.
func takesBursts(t *testing.T) bool {
	c := hostUDP(t, net.IPv4(127, 0, 0, 1))
	testkit.OK(t, c.SetReadBuffer(forwardBuffer))
	raw := testkit.Must(c.SyscallConn())(t)
	n := 0
	testkit.OK(t, raw.Control(func(fd uintptr) {
		n, _ = syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF)
	}))
	return n >= forwardBuffer
}

// wholeBurst checks that all n datagrams came, or that the missing ones were counted as lost. Where takesBursts is
// true, all must come.
func wholeBurst(t *testing.T, what string, came, n, lost int) {
	t.Helper()
	if came+lost != n || takesBursts(t) && came != n {
		t.Errorf("%s: %d of %d came, %d counted as lost", what, came, n, lost)
	}
}

// At the first burst the gateway does not know the guest's MAC yet.
func TestBurstsAtAForward(t *testing.T) {
	addr := netip.AddrPortFrom(addr4Of(1), 90)
	for _, c := range bursts {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			w := newRig(t, forwardUDP(addr))
			lost := func() int { return int(w.g.Stats().UDPLost) }
			l := w.guest(1).unconnected(addr)
			client := testkit.Must(net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(w.g.Forwards()[0].Listen)))(t)
			defer client.Close()
			testkit.OK(t, client.SetReadBuffer(forwardBuffer))
			b := noise(c.size, 1)
			for range c.n {
				testkit.Must(client.Write(b))(t)
			}
			wholeBurst(t, "to the guest", count(t, l, c.n, c.size, lost), c.n, lost())
			testkit.Must(client.Write([]byte("ask")))(t)
			asker := net.UDPAddrFromAddrPort(hears(t, l, "ask"))
			before := lost()
			for range c.n {
				testkit.Must(l.WriteTo(b, asker))(t)
			}
			back := func() int { return lost() - before }
			wholeBurst(t, "to the client", count(t, client, c.n, c.size, back), c.n, back())
		})
	}
}

func TestBurstsInAFlow(t *testing.T) {
	for _, c := range bursts {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			w := newRig(t, nil)
			lost := func() int { return int(w.g.Stats().UDPLost) }
			server := hostUDP(t, net.IPv4(127, 0, 0, 1))
			testkit.OK(t, server.SetReadBuffer(2*forwardBuffer))
			u := w.guest(1).dialUDP(own4(portOf(server)))
			defer u.Close()
			testkit.Must(u.Write([]byte("hello")))(t)
			from := hears(t, server, "hello")
			b := noise(c.size, 1)
			for range c.n {
				testkit.Must(u.Write(b))(t)
			}
			wholeBurst(t, "to the server", count(t, server, c.n, c.size, lost), c.n, lost())
			before := lost()
			for range c.n {
				testkit.Must(server.WriteToUDPAddrPort(b, from))(t)
			}
			down := func() int { return lost() - before }
			wholeBurst(t, "to the guest", count(t, u, c.n, c.size, down), c.n, down())
		})
	}
}

// A frame with a tag of VLAN 0 is treated as untagged (802.1Q, 9.6).
func TestPriorityTags(t *testing.T) {
	for _, c := range []struct {
		name string
		tags []byte
		want bool
	}{
		{"priority 1", []byte{0x81, 0, 0x20, 0}, true}, {"priority 0", []byte{0x81, 0, 0, 0}, true},
		{"VLAN 5", []byte{0x81, 0, 0x20, 5}, false}, {"two tags", []byte{0x88, 0xa8, 0, 0, 0x81, 0, 0, 0}, false},
	} {
		w := newRig(t, nil)
		r := w.raw(1)
		r.meet()
		tag := func(b []byte) []byte { return append(append(append([]byte{}, b[:12]...), c.tags...), b[12:]...) }
		echo := udpEcho(t)
		filtered := w.g.Stats().Filtered
		_ = r.send(tag(r.arp(1, addr4Of(1), prefix4.Addr(), r.mac)))
		_ = r.send(tag(r.udp4(gatewayMAC, netip.AddrPortFrom(addr4Of(1), 2000), own4(echo.Port()), []byte("x"))))
		if !c.want {
			testkit.Equal(t, c.name+": filtered", w.g.Stats().Filtered-filtered, 2)
			continue
		}
		r.await("ARP", func(b []byte) bool { return isARP(b, 2) })
		r.await("answer", func(b []byte) bool {
			r.answerARP(b)
			return len(b) > 42 && b[12] == 8 && b[13] == 0 && b[23] == splitter.ProtoUDP && b[42] == 'x'
		})
	}
}

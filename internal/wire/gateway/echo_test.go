package gateway

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"vnic.dev/vnic/internal/ether"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/splitter"
)

// world makes a gateway connect the sockets of all flows to one server on loopback, and send each Flow to asked. The
// server sends datagrams back: echo requests as replies, and with another identifier, because the kernel changes it.
func world(t testing.TB, asked chan Flow) func(*Gateway) {
	const id = 0x4242
	c := testkit.Must(net.ListenPacket("udp4", "127.0.0.1:0"))(t)
	serveUDP(t, c, func(b []byte) [][]byte {
		if b[0] == echo4 {
			b[0] = 0
		} else if b[0] == echo6 {
			b[0] = 129
		}
		binary.BigEndian.PutUint16(b[4:], id)
		return [][]byte{b}
	})
	return func(g *Gateway) {
		g.openFlow = func(ctx context.Context, f Flow, _ permit) (*net.UDPConn, error) {
			asked <- f
			return net.DialUDP("udp4", nil, c.LocalAddr().(*net.UDPAddr))
		}
	}
}

func (r *raw) ping(src, dst netip.Addr, id, seq uint16, ttl uint8, data []byte) []byte {
	b := append(make([]byte, 8), data...)
	binary.BigEndian.PutUint16(b[4:], id)
	binary.BigEndian.PutUint16(b[6:], seq)
	if src.Is6() {
		b[0] = echo6
		header.ICMPv6(b).SetChecksum(header.ICMPv6Checksum(header.ICMPv6ChecksumParams{Header: b,
			Src: ether.Address(src), Dst: ether.Address(dst)}))
		f := r.icmp6(gatewayMAC, src, dst, b)
		f[21] = ttl
		return f
	}
	b[0] = echo4
	header.ICMPv4(b).SetChecksum(^checksumOf(b))
	f := r.ip4(gatewayMAC, src, dst, protoICMP, b)
	ip := header.IPv4(f[14:34])
	ip.SetTTL(ttl)
	ip.SetChecksum(0)
	ip.SetChecksum(^ip.CalculateChecksum())
	return f
}

// answerND answers a neighbor solicitation, for any address, with r's MAC (RFC 4861, 4.4).
func (r *raw) answerND(b []byte) {
	if len(b) < 78 || b[20] != protoICMPv6 || b[54] != ndSolicit {
		return
	}
	msg := append([]byte{ndNeighborAdvert, 0, 0, 0, 0x60, 0, 0, 0}, b[62:78]...)
	msg = append(append(msg, 2, 1), r.mac[:]...)
	_ = r.send(r.icmp6(gatewayMAC, netip.AddrFrom16([16]byte(b[62:78])), netip.AddrFrom16([16]byte(b[22:38])), msg))
}

func TestPingsGoToTheWorld(t *testing.T) {
	for _, c := range []struct {
		name     string
		src, dst netip.Addr
		proto    uint8
		reply    byte
		off      int // of the ICMP message in a frame
	}{
		{"IPv4", addr4Of(1), netip.MustParseAddr("192.0.2.7"), protoICMP, 0, 34},
		{"IPv6", addr6Of(1), netip.MustParseAddr("2001:db8::7"), protoICMPv6, 129, 54},
	} {
		t.Run(c.name, func(t *testing.T) {
			asked := make(chan Flow, 10)
			w := newRig(t, nil, world(t, asked))
			r := w.raw(1)
			r.meet()
			data := noise(56, 1)
			for seq := range uint16(3) {
				r.mustSend(r.ping(c.src, c.dst, 7, seq, 30, data))
				b := r.await("echo reply", func(b []byte) bool {
					r.answerARP(b)
					r.answerND(b)
					return len(b) >= c.off+8+len(data) && b[c.off] == c.reply && (b[23] == c.proto || b[20] == c.proto)
				})
				b = b[c.off : c.off+8+len(data)]
				testkit.Equal(t, "identifier", binary.BigEndian.Uint16(b[4:]), 7)
				testkit.Equal(t, "sequence", binary.BigEndian.Uint16(b[6:]), seq)
				testkit.Equal(t, "data", string(b[8:]), string(data))
				if c.proto == protoICMP {
					testkit.Equal(t, "checksum", checksumOf(b), 0xffff)
				}
			}
			f := <-asked
			testkit.Equal(t, "socket", f, Flow{Proto: c.proto, To: netip.AddrPortFrom(c.dst, 0), TTL: 29, DF: f.DF,
				Buffer: flowBuffer})
			testkit.Equal(t, "more sockets", len(asked), 0)
			testkit.Equal(t, "flows", w.g.Stats().UDPFlows, 1)
		})
	}
}

func TestPingsThatTheHostProhibits(t *testing.T) {
	w := newRig(t, nil, func(g *Gateway) {
		g.openFlow = func(context.Context, Flow, permit) (*net.UDPConn, error) { return nil, unix.EACCES }
	})
	r := w.raw(1)
	r.meet()
	dst := netip.MustParseAddr("192.0.2.7")
	r.mustSend(r.ping(addr4Of(1), dst, 7, 1, 30, noise(56, 1)))
	b := r.await("ICMP administratively prohibited", func(b []byte) bool {
		r.answerARP(b)
		return len(b) > 70 && b[12] == 8 && b[13] == 0 && b[23] == protoICMP && b[34] == 3 && b[35] == 13
	})
	inner := header.IPv4(b[42:62])
	testkit.Equal(t, "quoted", addrPort(inner.DestinationAddress(), 0).Addr(), dst)
	testkit.Equal(t, "quoted identifier", binary.BigEndian.Uint16(b[66:]), 7)
	testkit.Eventually(t, "no flow is left", func() bool { return w.g.Stats().UDPOpen == 0 })
}

// A packet with a TTL of 1 gets "time exceeded" from the gateway (RFC 1812, 5.3.1), and no socket is opened for it.
func TestNoHopIsLeft(t *testing.T) {
	asked := make(chan Flow, 10)
	w := newRig(t, nil, world(t, asked))
	r := w.raw(1)
	r.meet()
	dst := netip.MustParseAddr("192.0.2.7")
	udp := r.udp4(gatewayMAC, netip.AddrPortFrom(addr4Of(1), 2000), netip.AddrPortFrom(dst, 33434), noise(32, 1))
	ip := header.IPv4(udp[14:34])
	ip.SetTTL(1)
	ip.SetChecksum(0)
	ip.SetChecksum(^ip.CalculateChecksum())
	for name, f := range map[string][]byte{"UDP": udp, "ping": r.ping(addr4Of(1), dst, 7, 1, 1, noise(56, 1))} {
		r.mustSend(f)
		b := r.await(name+": time exceeded", func(b []byte) bool {
			r.answerARP(b)
			return len(b) > 70 && b[12] == 8 && b[13] == 0 && b[23] == protoICMP && b[34] == 11 && b[35] == 0
		})
		testkit.Equal(t, name+": from", netip.AddrFrom4([4]byte(b[26:30])), prefix4.Addr())
		testkit.Equal(t, name+": quoted", string(b[62:70]), string(f[34:42]))
	}
	testkit.Equal(t, "sockets", len(asked), 0)
}

func TestGuestsSendNoErrors(t *testing.T) {
	r := newRaw(t, newSwitch(t), 1)
	for _, c := range []struct {
		name string
		v6   bool
		body []byte
		want bool
	}{
		{"echo", false, []byte{8, 0, 0, 0, 0, 0, 0, 0}, true}, {"unreachable", false, []byte{3, 4, 0, 0, 0, 0, 0, 68}, false},
		{"redirect", false, []byte{5, 0, 0, 0, 0, 0, 0, 0}, false},
		{"echo reply", false, []byte{0, 0, 0, 0, 0, 0, 0, 0}, false},
		{"nothing", false, nil, false},
		{"echo", true, []byte{128, 0, 0, 0, 0, 0, 0, 0}, true}, {"too big", true, []byte{2, 0, 0, 0, 0, 0, 0, 68}, false},
		{"neighbor solicitation", true, append([]byte{135}, make([]byte, 23)...), true},
		{"router advertisement", true, append([]byte{134}, make([]byte, 23)...), false},
		{"redirect", true, append([]byte{137}, make([]byte, 39)...), false},
	} {
		f := r.ip4(gatewayMAC, addr4Of(1), prefix4.Addr(), protoICMP, c.body)
		if c.v6 {
			f = r.icmp6(gatewayMAC, addr6Of(1), prefix6.Addr(), append([]byte(nil), c.body...))
		}
		var h splitter.Headers
		testkit.OK(t, splitter.Parse(f, uint32(len(f)), &h))
		if got := allowedICMP(&h, f[h.L3Off:]); got != c.want {
			t.Errorf("%s, IPv6 %v: %v", c.name, c.v6, got)
		}
		if c.v6 {
			continue
		}
		ip := header.IPv4(f[14:34])
		for offset, want := range map[uint16]bool{0: c.want, 8: true} {
			ip.SetFlagsFragmentOffset(header.IPv4FlagMoreFragments, offset)
			ip.SetChecksum(0)
			ip.SetChecksum(^ip.CalculateChecksum())
			testkit.OK(t, splitter.Parse(f, uint32(len(f)), &h))
			if got := allowedICMP(&h, f[h.L3Off:]); got != want {
				t.Errorf("%s, fragment at %d: %v", c.name, offset, got)
			}
		}
	}
}

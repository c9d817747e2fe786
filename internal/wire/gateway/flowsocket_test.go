package gateway

import (
	"encoding/binary"
	"net"
	"net/netip"
	"testing"
	"time"

	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/splitter"
)

func TestTooLongIsToldOnce(t *testing.T) {
	w := newRig(t, nil)
	r := w.raw(1)
	r.meet()
	l := hostUDP(t, net.IPv6loopback)
	key := flowKey{splitter.ProtoUDP, netip.AddrPortFrom(addr6Of(1), 2000), netip.MustParseAddr("2001:db8::7")}
	f := w.g.flowOf(key, owner{link: r.link.Serial()}, netip.IPv6Loopback())
	send := func(n int) {
		f.send(outgoing{to: permit{netip.AddrPortFrom(netip.IPv6Loopback(), portOf(l))}, port: portOf(l), df: true,
			data: make([]byte, n)})
	}
	isTooBig := func(b []byte) bool {
		r.answerND(b)
		return len(b) > 110 && b[20] == protoICMPv6 && b[54] == 2
	}
	send(65489) // with headers one byte more than lo's MTU
	b := r.await("packet too big", isTooBig)
	testkit.Equal(t, "MTU", binary.BigEndian.Uint32(b[58:]), 65536)
	testkit.Equal(t, "bytes of the error, with its Ethernet header", len(b), 14+1280) // RFC 4443, 2.4 c
	testkit.Equal(t, "quoted port", binary.BigEndian.Uint16(b[104:]), portOf(l))
	send(100)
	testkit.Equal(t, "bytes that arrive", len(readFrom(t, l)), 100)
	for len(r.got) > 0 {
		if isTooBig(<-r.got) {
			t.Error("it is told twice")
		}
	}
}

func readFrom(t testing.TB, c *net.UDPConn) []byte {
	t.Helper()
	b := make([]byte, maxUDPSize)
	testkit.OK(t, c.SetReadDeadline(time.Now().Add(patience)))
	n, _, err := c.ReadFromUDPAddrPort(b)
	testkit.OK(t, err)
	return b[:n]
}

package gateway

import (
	"net/netip"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip/header"

	"vnic.dev/vnic/internal/testkit"
)

// One guest's flood of flows is bounded, and leaves room for another guest.
func TestFloodOfDatagrams(t *testing.T) {
	w := newRig(t, nil)
	r := w.raw(1)
	r.meet()
	to := own4(udpEcho(t).Port())
	for i := range uint16(maxUDP) {
		r.send(r.udp4(gatewayMAC, netip.AddrPortFrom(addr4Of(1), 1000+i), to, []byte("x")))
	}
	conn := w.guest(2).dialUDP(to)
	defer conn.Close()
	testkit.OK(t, exchangeDatagram(conn, []byte("hello")))
	if s := w.g.Stats(); s.UDPOpen != maxUDP/2+1 || s.Refused != maxUDP/2 {
		t.Errorf("%+v", s)
	}
}

// Fragments that never become whole take no more than netstack gives them.
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

// Nor does a flood of connections that are never made keep others from making theirs.
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
	if s := w.g.Stats(); s.TCPOpen > maxPending/4+1 || s.Refused == 0 {
		t.Errorf("%+v", s)
	}
}

package gateway

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/testkit"
)

func TestErrorsOfOneGuestLeaveOthersTheirs(t *testing.T) {
	beyond := netip.MustParseAddr("192.0.2.7")
	datagram := func(to netip.AddrPort) func(r *raw, n uint16) []byte {
		return func(r *raw, n uint16) []byte {
			return r.udp4(gatewayMAC, netip.AddrPortFrom(addr4Of(r.mac[5]), n), to, []byte("x"))
		}
	}
	ping := func(ttl uint8) func(r *raw, n uint16) []byte {
		return func(r *raw, n uint16) []byte { return r.ping(addr4Of(r.mac[5]), beyond, n, 1, ttl, nil) }
	}
	for _, c := range []struct {
		name      string
		nat       bool
		frame     func(r *raw, n uint16) []byte
		typ, code byte
		off       int // of n in the packet that an error quotes, after its IP header
	}{
		{"prohibited", true, datagram(netip.MustParseAddrPort("169.254.169.254:80")), 3, 13, 0},
		{"expired", true, ping(1), 11, 0, 4},
		{"refused by the host", true, ping(64), 3, 13, 4},
		{"no route", false, ping(64), 3, 0, 4},
		{"closed port", false, datagram(own4(9)), 3, 3, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			var time clock
			w := newRig(t, func(o *Options) { o.NAT = c.nat }, time.set, func(g *Gateway) {
				g.openFlow = func(context.Context, Flow, permit) (*net.UDPConn, error) { return nil, unix.EACCES }
			})
			r, other := w.raw(1), w.raw(2)
			r.meet()
			other.meet()
			// quotes returns n as quoted in the next error to a guest.
			quotes := func(r *raw) uint16 {
				msg, _ := r.awaitICMP("error", c.typ, c.code)
				return binary.BigEndian.Uint16(msg[28+c.off:])
			}
			const last = 3000
			for n := range uint16(errorBurst + 100) {
				r.mustSend(c.frame(r, 1000+n))
			}
			other.mustSend(c.frame(other, last))
			testkit.Equal(t, "error of the other guest", quotes(other), last)
			for range errorBurst {
				quotes(r)
			}
			r.mustSend(r.ping(addr4Of(1), prefix4.Addr(), 7, 1, 64, nil))
			r.awaitICMP("echo reply, behind all that it has sent", 0, 0)
			testkit.Eventually(t, "no flow is left", func() bool { return w.g.Stats().UDPOpen == 0 })
			time.advance(1e9 / errorRate)
			r.mustSend(c.frame(r, last))
			testkit.Equal(t, "error after the burst", quotes(r), last)
		})
	}
}

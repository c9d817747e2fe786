package gateway

import (
	"net/netip"
	"testing"
	"time"

	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/splitter"
)

func TestHalfOpenConnectionsEnd(t *testing.T) {
	const n = 4
	echo := own4(echoServer(t, "tcp4").Port())
	for _, to := range []struct {
		name string
		to   netip.AddrPort
	}{{"NAT", echo}, {"DNS", own4(portDNS)}} {
		for _, c := range []struct {
			name     string
			limit    limits.Limit
			halfOpen int // how many SYN-ACKs the test waits for before it calls end
			end      func(w *rig, r *raw)
			left     int
		}{
			{"in time", limits.Limit(time.Millisecond), 0, func(*rig, *raw) {}, 0},
			{"restart", limits.Limit(time.Hour), n, func(_ *rig, r *raw) { r.link.Restarted() }, 0},
			{"evicted", limits.Limit(time.Hour), n, func(w *rig, _ *raw) {
				c := w.guest(2).mustDial(echo)
				testkit.OK(t, exchange(c, []byte("hello")))
				c.Close()
			}, n - 1},
		} {
			t.Run(to.name+", "+c.name, func(t *testing.T) {
				w := newRig(t, nil, func(g *Gateway) {
					g.confirmTime, g.pending = c.limit, newQuota(n, &g.count)
				})
				r := w.raw(1)
				r.meet()
				for i := range uint16(n) {
					r.mustSend(r.syn(netip.AddrPortFrom(addr4Of(1), 1000+i), to.to))
				}
				flags := func(want uint8) func(b []byte) bool {
					return func(b []byte) bool {
						r.answerARP(b)
						return len(b) >= 54 && b[12] == 8 && b[13] == 0 && b[23] == splitter.ProtoTCP && b[47]&want == want
					}
				}
				for range c.halfOpen {
					r.await("SYN and ACK", flags(splitter.SYN|splitter.ACK))
				}
				c.end(w, r)
				for range n - c.left {
					r.await("reset", flags(splitter.RST))
				}
				testkit.Eventually(t, "they have ended", func() bool {
					s := w.g.Stats()
					return s.TCPOpen+w.g.dns.conns.taken() == int64(c.left) && w.g.pending.taken() == int64(c.left) &&
						s.Unreached == uint64(n-c.left)
				})
			})
		}
	}
}

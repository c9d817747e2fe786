package gateway

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/splitter"
)

// An IPv6 packet that the guest itself fragmented may be fragmented again by the host (no DF), another one not.
func TestWhatAGuestHasCut(t *testing.T) {
	src, dst := netip.AddrPortFrom(addr6Of(1), 1000), netip.MustParseAddrPort("[2001:db8::7]:2000")
	for _, c := range []struct {
		name string
		next byte
		body func(r *raw) []byte
	}{
		{"UDP", splitter.ProtoUDP, func(*raw) []byte { return segment(splitter.ProtoUDP, src, dst, noise(1300, 1)) }},
		{"ping", protoICMPv6, func(r *raw) []byte {
			return r.ping(src.Addr(), dst.Addr(), 7, 1, 64, noise(1300, 1))[54:]
		}},
	} {
		for _, cut := range []bool{false, true} {
			t.Run(c.name, func(t *testing.T) {
				asked := make(chan Flow, 10)
				w := newRig(t, nil, world(t, asked))
				r := w.raw(1)
				r.meet()
				frames := [][]byte{r.packet(src.Addr(), dst.Addr(), c.next, c.body(r))}
				if cut {
					frames = r.fragments6(src.Addr(), dst.Addr(), c.next, c.body(r), 150, 150)
				}
				for _, f := range frames {
					r.mustSend(f)
				}
				testkit.Equal(t, "may be cut", !(<-asked).DF, cut)
			})
		}
	}
}

func TestFragmentsWithAWrongChecksum(t *testing.T) {
	for _, to := range []string{"192.0.2.7", "2001:db8::7"} {
		t.Run(to, func(t *testing.T) {
			asked := make(chan Flow, 10)
			w := newRig(t, nil, world(t, asked))
			r := w.raw(1)
			r.meet()
			send := func(proto byte, port, wrong uint16) {
				dst := netip.AddrPortFrom(netip.MustParseAddr(to), port)
				src := source(dst.Addr(), 1000)
				body := segment(proto, src, dst, noise(64, 1))
				off := map[byte]int{splitter.ProtoUDP: 6, splitter.ProtoTCP: 16}[proto]
				binary.BigEndian.PutUint16(body[off:], binary.BigEndian.Uint16(body[off:])^wrong)
				frames := r.fragments6(src.Addr(), dst.Addr(), proto, body, 2, 2)
				if dst.Addr().Is4() {
					frames = fragments(r.packet(src.Addr(), dst.Addr(), proto, body), 2, 2)
				}
				for _, f := range frames {
					r.mustSend(f)
				}
			}
			send(splitter.ProtoTCP, 2000, 1)
			send(splitter.ProtoUDP, 2000, 1)
			send(splitter.ProtoUDP, 2001, 0) // the gateway handles one after the other
			f := <-asked
			for ; f.To.Port() == 0; f = <-asked { // skip sockets that receive from other ports
			}
			testkit.Equal(t, "the first port that is carried to", f.To.Port(), 2001)
			testkit.Equal(t, "connections", w.g.Stats().TCPOpen, 0)
		})
	}
}

package splitter

import "testing"

func TestCsumAllowed(t *testing.T) {
	arp := append([]byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 6}, make([]byte, 46)...)
	icmp6, gre := tcp6(0), tcp4(0)
	icmp6.proto, icmp6.payload = 58, pattern(64)
	gre.proto, gre.payload = 47, pattern(64)
	route := extended(tcp6(100), extRouting)
	route[14+40+3] = 1 // one segment left
	wrong := built(tcp4(100))
	wrong[14] = 0x46
	for _, c := range []struct {
		name   string
		b      []byte
		judged int
		start  int // with offset, the only place allowed; 0: any place after JudgedLen in the frame; -1: none
		offset int
	}{
		{"TCP", built(tcp4(100)), 14 + 20 + 32, 34, 16},
		{"TCP over IPv6", built(tcp6(100)), 14 + 40 + 32, 54, 16},
		{"UDP", built(udp(tcp4(100))), 14 + 20 + 8, 34, 6},
		{"extension headers", extended(tcp6(100), extHopByHop, extDestOpts), 14 + 40 + 16 + 32, 70, 16},
		{"tags", tagged(udp(tcp6(100)), 0x88a8, 0x8100), 22 + 40 + 8, 62, 6},
		{"three tags", tagged(tcp4(100), 0x88a8, 0x8100, 0x8100), 22, 0, 0},
		{"ARP", arp, 14 + 28, 0, 0},
		{"runt of ARP", arp[:30], 30, -1, 0},
		{"ICMPv6", built(icmp6), 14 + 40 + 24, 0, 0},
		{"GRE", built(gre), 14 + 20, 0, 0},
		{"SCTP", other(tcp4(0), ProtoSCTP, 64), 14 + 20 + 4, 0, 0},
		{"ESP", other(tcp6(0), ProtoESP, 64), 14 + 40 + 4, 0, 0},
		{"AH", other(tcp4(0), ProtoAH, 64), 14 + 20 + 8, 0, 0},
		{"source route", route, 14 + 40 + 8, 0, 0},
		{"fragment", fragment(tcp4(100), 0x2000), 14 + 20, -1, 0},
		{"fragment header", extended(tcp6(100), extFragment), 14 + 40 + 8, -1, 0},
		{"malformed", wrong[:60], 60, -1, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := Meta{Csum: CsumPartial}
			m.Headers = parsed(t, c.b)
			if n := m.Headers.JudgedLen(); n != uint32(c.judged) {
				t.Errorf("%d bytes are judged, not %d: %+v", n, c.judged, m.Headers)
			}
			for start := range 300 {
				for _, offset := range []int{0, 1, 6, 16, 100, 0xffff - start, 0x10000 - start, 0xffff} {
					if offset > 0xffff {
						continue
					}
					want := c.start == start && c.offset == offset && start > 0 ||
						c.start == 0 && start >= c.judged && start+offset+2 <= len(c.b)
					m.CsumStart, m.CsumOffset = uint16(start), uint16(offset)
					if got := m.CsumAllowed(uint32(len(c.b))); got != want {
						t.Fatalf("%d+%d of %d: %v", start, offset, len(c.b), got)
					}
				}
			}
		})
	}
}

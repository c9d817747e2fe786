package splitter

import (
	"encoding/hex"
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"vnic.dev/vnic/internal/testkit"
)

func TestParseClasses(t *testing.T) {
	icmp := frame{src: "10.0.0.1", dst: "10.0.0.2", proto: 1, payload: pattern(56)}
	routed := tcp6(10)
	routed.ext = []byte{extRouting}
	atSource := routed.build()
	atSource[54+3] = 1 // segments left
	for _, c := range []struct {
		name   string
		b      []byte
		class  Class
		l4, hl uint16
		proto  uint8
	}{
		{"arp", append(unhex("ffffffffffff0200000000aa0806"), make([]byte, 46)...), NotIP, 0, 14, 0},
		{"802.3", append(unhex("ffffffffffff0200000000aa0026"), make([]byte, 38)...), NotIP, 0, 14, 0},
		{"tcp4", bare(tcp4(0)), TCP, 34, 54, 6},
		{"tcp4 timestamps", built(tcp4(100)), TCP, 34, 66, 6},
		{"tcp6 timestamps", built(tcp6(100)), TCP, 54, 86, 6},
		{"vlan", tagged(tcp4(1), 0x8100), TCP, 38, 70, 6},
		{"qinq", tagged(tcp4(1), 0x88a8, 0x8100), TCP, 42, 74, 6},
		{"three tags", tagged(tcp4(1), 0x88a8, 0x8100, 0x8100), NotIP, 0, 22, 0},
		{"udp4", built(udp(tcp4(9))), UDP, 34, 42, 17},
		{"udp6", built(udp(tcp6(0))), UDP, 54, 62, 17},
		{"icmp", icmp.build(), OtherIP, 34, 34, 1},
		{"first fragment", fragment(tcp4(100), 0x2000), Fragment, 34, 34, 6},
		{"later fragment", fragment(tcp4(100), 0x0010), Fragment, 34, 34, 6},
		{"do not fragment", fragment(tcp4(100), 0x4000), TCP, 34, 66, 6},
		{"ipv6 fragment", extended(tcp6(100), extFragment), Fragment, 62, 62, 6},
		{"hop by hop", extended(tcp6(1), extHopByHop), TCP, 62, 94, 6},
		{"four extensions", extended(tcp6(1), extHopByHop, extDestOpts, extRouting, extDestOpts), TCP, 86, 118, 6},
		{"ah of 16 bytes", ahOf(tcp6(1)), TCP, 70, 102, 6},
		{"source route", atSource, OtherIP, 62, 62, 43},
		{"no next header", extended(frame{src: "::1", dst: "::2", proto: 59}), OtherIP, 54, 54, 59},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := parsed(t, c.b)
			if h.Class != c.class || h.L4Off != c.l4 || h.HdrLen != c.hl || h.Proto != c.proto {
				t.Fatalf("got %+v", h)
			}
			if h.FrameLen != uint32(len(c.b)) {
				t.Errorf("FrameLen %d of %d", h.FrameLen, len(c.b))
			}
			if (h.Class == Fragment || h.Class == OtherIP) && (h.Flow.SrcPort != 0 || h.Flow.DstPort != 0) {
				t.Errorf("ports in %+v", h.Flow)
			}
		})
	}
}

func TestParseFindsSelectors(t *testing.T) {
	tags, first, first6 := tcp6(0), tcp4(0), tcp6(0)
	tags.tags, first.fragOff, first6.ext = []uint16{0x88a8}, 0x2000, []byte{extFragment}
	for name, c := range map[string]struct {
		b        []byte
		src, dst uint16
		spi      uint32 // of an IPv6 authentication header
	}{
		"sctp4":             {b: other(tcp4(0), ProtoSCTP, 12), src: 0x0108, dst: 0x0f16},
		"sctp6, tags":       {b: other(tags, ProtoSCTP, 4), src: 0x0108, dst: 0x0f16},
		"short sctp":        {b: other(tcp4(0), ProtoSCTP, 3)},
		"esp4":              {b: other(tcp4(0), ProtoESP, 8), src: 0x0108, dst: 0x0f16},
		"esp6":              {b: other(tcp6(0), ProtoESP, 100), src: 0x0108, dst: 0x0f16},
		"empty esp":         {b: other(tcp6(0), ProtoESP, 0)},
		"ah4":               {b: other(tcp4(0), ProtoAH, 24), src: 0x1d24, dst: 0x2b32},
		"short ah4":         {b: other(tcp4(0), ProtoAH, 7)},
		"ah6":               {b: ahOf(tcp6(1)), src: 40000, dst: 5201, spi: 0x01020304},
		"gre":               {b: other(tcp4(0), 47, 20)},
		"fragment of sctp":  {b: other(first, ProtoSCTP, 12)},
		"fragment6 of sctp": {b: other(first6, ProtoSCTP, 12)},
	} {
		h := parsed(t, c.b)
		if h.Flow.SrcPort != c.src || h.Flow.DstPort != c.dst || h.AHSPI != c.spi || h.AH != (c.spi != 0) {
			t.Errorf("%s: %+v", name, h)
		}
		for n := range h.JudgedLen() { // with n bytes, Parse returns ErrShort
			if c.src == 0 && n >= uint32(h.HdrLen) {
				break // the frame has neither ports nor an SPI: Parse needs no more bytes
			}
			var short Headers
			if err := Parse(c.b[:n], uint32(len(c.b)), &short); !errors.Is(err, ErrShort) {
				t.Errorf("%s: with %d bytes: %v, %+v", name, n, err, short)
			}
		}
	}
}

func other(f frame, proto uint8, n int) []byte {
	f.proto, f.payload = proto, pattern(n)
	return f.build()
}

// ahOf returns an IPv6 frame with an authentication header of 16 bytes before the transport header.
func ahOf(f frame) []byte {
	f.ext = []byte{extAH, extDestOpts} // two headers of 8 bytes, to be merged into one of 16
	b := f.build()
	ah := b[54:70]
	next := ah[8]
	clear(ah)
	ah[0], ah[1] = next, 2 // (2+2)*4
	copy(ah[4:], []byte{1, 2, 3, 4})
	return b
}

func built(f frame) []byte { return f.build() }
func bare(f frame) []byte  { f.tcpOpts = 0; return f.build() }
func tagged(f frame, tags ...uint16) []byte {
	f.tags = tags
	return f.build()
}
func fragment(f frame, off uint16) []byte {
	f.fragOff = off
	return f.build()
}
func extended(f frame, ext ...byte) []byte {
	f.ext = ext
	return f.build()
}
func unhex(s string) []byte {
	b, err := hex.DecodeString(s)
	if err != nil {
		panic(err)
	}
	return b
}

func TestParseFindsFlowAndNumbers(t *testing.T) {
	f := tcp4(3)
	f.tags, f.flags = []uint16{0x88a8, 0x8100}, PSH|ACK
	want := Headers{Class: TCP, Proto: 6, TCPFlags: PSH | ACK, VLANs: 2, EtherType: 0x0800, VLAN: 0x2000, L3Off: 22,
		L4Off:  42,
		HdrLen: 74, Seq: 0xfffffe00, Ack: 77, FrameLen: 77, Flow: Flow{Src: [16]byte{10, 0, 0, 1}, Dst: [16]byte{10, 0, 0, 2},
			SrcPort: 40000, DstPort: 5201, Proto: 6}}
	if d := cmp.Diff(want, parsed(t, f.build())); d != "" {
		t.Error(d)
	}
	f = udp(tcp6(3))
	want = Headers{Class: UDP, Proto: 17, IPv6: true, EtherType: 0x86dd, L3Off: 14, L4Off: 54, HdrLen: 62, FrameLen: 65,
		Flow: Flow{Src: [16]byte{0xfd, 15: 1}, Dst: [16]byte{0xfd, 15: 2}, SrcPort: 40000, DstPort: 5201, Proto: 17,
			IPv6: true}}
	if d := cmp.Diff(want, parsed(t, f.build())); d != "" {
		t.Error(d)
	}
}

func TestParseSweepsHeaderLengths(t *testing.T) {
	seen := map[uint16]bool{}
	for _, f := range []frame{tcp4(5), tcp6(5)} {
		for opts := 0; opts <= 40; opts += 4 {
			for ipOpts := 0; ipOpts <= 40; ipOpts += 4 {
				for _, tags := range [][]uint16{nil, {0x8100}, {0x88a8, 0x8100}} {
					f.tcpOpts, f.ipOpts, f.tags = opts, ipOpts, tags
					want := 14 + 4*len(tags) + 20 + ipOpts + 20 + opts
					if f.src == "fd00::1" {
						if want += 20 - ipOpts; ipOpts != 0 {
							continue
						}
					}
					b := f.build()
					var h Headers
					if err := Parse(b, uint32(len(b)), &h); err != nil || h.Class != TCP || int(h.HdrLen) != want {
						t.Fatalf("%v: want %d, got %+v", err, want, h)
					}
					seen[h.HdrLen] = true
				}
			}
		}
	}
	for _, n := range []uint16{54, 66, 74, 94, 114} {
		if !seen[n] {
			t.Errorf("no header of %d bytes in the sweep", n)
		}
	}
}

func TestParseOfEveryPrefix(t *testing.T) {
	for _, b := range [][]byte{built(tcp4(50)), tagged(tcp6(50), 0x88a8, 0x8100), built(udp(tcp4(50))),
		extended(tcp6(9), extHopByHop, extDestOpts), extended(tcp6(9), extFragment)} {
		whole := parsed(t, b)
		for n := range len(b) + 1 {
			prefix := slices.Clip(slices.Clone(b[:n])) // to read or slice beyond it panics
			var h Headers
			err := Parse(prefix, uint32(len(b)), &h)
			if n < int(whole.HdrLen) {
				if !errors.Is(err, ErrShort) || h.Class != Malformed {
					t.Fatalf("%d of %d bytes: %v, %v", n, whole.HdrLen, err, h.Class)
				}
			} else if err != nil || h != whole {
				t.Fatalf("%d bytes: %v %+v", n, err, h)
			}
			if err := Parse(prefix, uint32(n), &h); err != nil || n < len(b) && h.Class != Malformed {
				t.Fatalf("frame cut to %d bytes: %v, %v", n, err, h.Class)
			}
		}
	}
}

func TestParseCutsPadding(t *testing.T) {
	f := tcp4(0)
	f.tcpOpts, f.padding = 0, 6
	var h Headers
	if err := Parse(f.build(), 60, &h); err != nil || h.FrameLen != 54 || h.HdrLen != 54 {
		t.Fatalf("%v %+v", err, h)
	}
	if n, ok := h.SplitLen(256); n != 54 || !ok {
		t.Errorf("split at %d, %v", n, ok)
	}
}

func TestParseRefusesContradictions(t *testing.T) {
	base, base6, u := built(tcp4(8)), built(tcp6(8)), built(udp(tcp4(8)))
	for _, c := range []struct {
		name  string
		frame []byte
		off   int
		set   []byte
	}{
		{"version", base, 14, []byte{0x65}},
		{"ihl 4", base, 14, []byte{0x44}},
		{"total length short of header", base, 16, []byte{0, 19}},
		{"total length past frame", base, 16, []byte{0, 61}},
		{"header past datagram", base, 16, []byte{0, 39}},
		{"tcp offset 4", base, 46, []byte{0x40}},
		{"tcp options past datagram", base, 46, []byte{0xf0}},
		{"version 6", base6, 14, []byte{0x45}},
		{"payload length past frame", base6, 18, []byte{0, 41}},
		{"extension past datagram", base6, 20, []byte{extDestOpts}},
		{"udp length 7", u, 38, []byte{0, 7}},
		{"udp length past datagram", u, 38, []byte{0, 17}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := append([]byte(nil), c.frame...)
			copy(b[c.off:], c.set)
			var h Headers
			if err := Parse(b, uint32(len(b)), &h); err != nil || h.Class != Malformed || h.HdrLen != 0 || h.Flow != (Flow{}) {
				t.Fatalf("%v %+v", err, h)
			}
			if _, ok := h.SplitLen(4096); ok {
				t.Error("it can be split")
			}
		})
	}
}

func TestParseBoundsExtensionChain(t *testing.T) {
	f := tcp6(0)
	for range 60 {
		f.ext = append(f.ext, extDestOpts)
	}
	b := f.build()
	var h Headers
	if err := Parse(b, uint32(len(b)), &h); err != nil || h.Class != Malformed {
		t.Fatalf("%v %+v", err, h)
	}
	if err := Parse(b[:MaxHeader], uint32(len(b)), &h); err != nil {
		t.Fatalf("%d bytes are always enough: %v", MaxHeader, err)
	}
}

func TestSplitLen(t *testing.T) {
	for _, c := range []struct {
		name  string
		b     []byte
		limit uint32
		n     uint32
		ok    bool
	}{
		{"data", built(tcp4(100)), 256, 66, true},
		{"data at the limit", built(tcp4(100)), 66, 66, true},
		{"data past the limit", built(tcp4(100)), 65, 66, false},
		{"udp", built(udp(tcp4(100))), 256, 142, true},
		{"long udp", built(udp(tcp4(300))), 256, 342, false},
	} {
		h := parsed(t, c.b)
		if n, ok := h.SplitLen(c.limit); n != c.n || ok != c.ok {
			t.Errorf("%s: %d, %v", c.name, n, ok)
		}
	}
}

func BenchmarkParse(b *testing.B) {
	for name, f := range map[string][]byte{"tcp4": built(tcp4(1448)), "tcp6": built(tcp6(1428)),
		"udp4": built(udp(tcp4(18)))} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			var h Headers
			for b.Loop() {
				testkit.OK(b, Parse(f, uint32(len(f)), &h))
			}
		})
	}
}

package splitter

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

// golden is a super-packet. testdata/gso has the segments that Linux makes of each one of goldenSuperPackets.
type golden struct {
	frame
	gso GSOType
	mss uint16
}

func goldenSuperPackets() map[string]golden {
	push := func(f frame, flags uint8) frame { f.flags |= flags; return f }
	opts := tcp4(3000)
	opts.ipOpts = 8
	g := map[string]golden{
		"tso4":         {push(tcp4(4000), PSH|FIN), GSOTCPv4, 1448},
		"tso4-odd":     {push(tcp4(3004), PSH), GSOTCPv4, 1001},
		"tso4-exact":   {push(tcp4(2896), PSH), GSOTCPv4, 1448},
		"tso4-cwr":     {push(tcp4(4000), CWR|ECE), GSOTCPv4, 1448},
		"tso4-options": {opts, GSOTCPv4, 1000},
		"tso4-vlan":    {tagFrame(tcp4(4000), 0x8100), GSOTCPv4, 1448},
		"tso4-jumbo":   {push(tcp4(20000), PSH), GSOTCPv4, 8948},
		"tso6":         {push(tcp6(4000), PSH|FIN), GSOTCPv6, 1428},
		"tso6-ext":     {extFrame(push(tcp6(4000), PSH), extHopByHop, extDestOpts), GSOTCPv6, 1400},
		"tso6-cwr":     {push(tcp6(4000), CWR), GSOTCPv6, 1428},
		"uso4":         {udp(tcp4(4000)), GSOUDPL4, 1472},
		"uso4-odd":     {udp(tcp4(3001)), GSOUDPL4, 999},
		"uso6":         {udp(tcp6(4000)), GSOUDPL4, 1452},
	}
	return g
}

func tagFrame(f frame, tags ...uint16) frame { f.tags = tags; return f }
func extFrame(f frame, ext ...byte) frame    { f.ext = ext; return f }

func (g *golden) super() ([]byte, *Meta) {
	b := g.build()
	m := &Meta{GSOType: g.gso, GSOSize: g.mss, Csum: CsumPartial}
	if err := Parse(b, uint32(len(b)), &m.Headers); err != nil {
		panic(err)
	}
	m.CsumStart, m.CsumOffset, _ = CsumPlace(&m.Headers)
	m.ECN = m.Headers.Class == TCP && m.Headers.TCPFlags&CWR != 0
	FixPartial(&m.Headers, b, uint32(len(b))-uint32(m.Headers.HdrLen))
	return b, m
}

func readPcap(t *testing.T, path string) (frames [][]byte) {
	t.Helper()
	b := testkit.Must(os.ReadFile(path))(t)
	for b = b[24:]; len(b) > 0; {
		n := binary.LittleEndian.Uint32(b[8:])
		frames = append(frames, b[16:16+n])
		b = b[16+n:]
	}
	return frames
}

// Invariant: splitter: Segments of a super-packet are Linux's, byte for byte.
func TestSegmentsAreThoseOfLinux(t *testing.T) {
	for name, g := range goldenSuperPackets() {
		t.Run(name, func(t *testing.T) {
			super, m := g.super()
			want := readPcap(t, filepath.Join("testdata", "gso", name+".pcap"))
			if !bytes.Equal(super, want[0]) {
				t.Fatal("the capture is of another super-packet")
			}
			same := func(what string, got [][]byte) {
				if len(got) != len(want)-1 {
					t.Fatalf("%s: %d segments, want %d", what, len(got), len(want)-1)
				}
				for i, w := range want[1:] {
					if hl := m.Headers.HdrLen; !bytes.Equal(got[i], w) {
						t.Errorf("%s: segment %d:\n got %x\nwant %x", what, i, got[i][:hl], w[:hl])
					}
				}
			}
			same("at once", segments(t, super, m, 1))
			// The same in two steps: super-packets of k segments, which are cut again.
			for k := uint32(2); k < 5; k++ {
				var again [][]byte
				for i, b := range segments(t, super, m, k) {
					sm := &Meta{}
					if err := Parse(b, uint32(len(b)), &sm.Headers); err != nil || sm.Headers.FrameLen != uint32(len(b)) {
						t.Fatalf("piece %d: %v %+v", i, err, sm.Headers)
					}
					var s Segmenter
					testkit.OK(t, s.Init(super[:m.Headers.HdrLen], m, uint32(len(super))-uint32(m.Headers.HdrLen)))
					off := uint32(i) * k * s.MSS()
					n := uint32(len(b)) - uint32(m.Headers.HdrLen)
					dst := make([]byte, len(s.hdr))
					testkit.OK(t, s.Piece(dst, sm, off, n))
					again = append(again, segments(t, append(dst, b[len(dst):]...), sm, 1)...)
				}
				same(fmt.Sprintf("in steps of %d", k), again)
			}
		})
	}
}

func segments(t *testing.T, super []byte, m *Meta, k uint32) (out [][]byte) {
	t.Helper()
	hl := m.Headers.HdrLen
	hdr, payload := super[:hl:hl], super[hl:]
	var s Segmenter
	testkit.OK(t, s.Init(hdr, m, uint32(len(payload))))
	for off := uint32(0); off < uint32(len(payload)); off += k * s.MSS() {
		n := min(k*s.MSS(), uint32(len(payload))-off)
		b := make([]byte, hl)
		var pm Meta
		testkit.OK(t, s.Piece(b, &pm, off, n))
		if (n > s.MSS()) != (pm.GSOType != GSONone) || pm.Csum != CsumPartial {
			t.Fatalf("piece at %d: %+v", off, pm)
		}
		part := payload[off : off+n]
		pm.Complete(b, naive(part))
		b = append(b, part...)
		var h Headers
		if err := Parse(b, uint32(len(b)), &h); err != nil || h != pm.Headers {
			t.Fatalf("piece at %d: %v:\n got %+v\nwant %+v", off, err, pm.Headers, h)
		}
		out = append(out, b)
	}
	return out
}

func TestSegmenterRefuses(t *testing.T) {
	for name, change := range map[string]func(g *golden, m *Meta, hdr *[]byte, n *uint32){
		"type of another version": func(_ *golden, m *Meta, _ *[]byte, _ *uint32) { m.GSOType = GSOTCPv6 },
		"type of udp":             func(_ *golden, m *Meta, _ *[]byte, _ *uint32) { m.GSOType = GSOUDPL4 },
		"unknown type":            func(_ *golden, m *Meta, _ *[]byte, _ *uint32) { m.GSOType = 9 },
		"size 0":                  func(_ *golden, m *Meta, _ *[]byte, _ *uint32) { m.GSOSize = 0 },
		"size 7":                  func(_ *golden, m *Meta, _ *[]byte, _ *uint32) { m.GSOSize = 7 },
		"no checksum":             func(_ *golden, m *Meta, _ *[]byte, _ *uint32) { m.Csum = CsumNone },
		"bad checksum":            func(_ *golden, m *Meta, _ *[]byte, _ *uint32) { m.Csum = CsumBad },
		"checksum elsewhere":      func(_ *golden, m *Meta, _ *[]byte, _ *uint32) { m.CsumStart++ },
		"short header":            func(_ *golden, _ *Meta, h *[]byte, _ *uint32) { *h = (*h)[:60] },
		"long payload":            func(_ *golden, _ *Meta, _ *[]byte, n *uint32) { *n++ },
		"huge payload":            func(_ *golden, _ *Meta, _ *[]byte, n *uint32) { *n = 1<<32 - 1 },
		"syn":                     func(_ *golden, m *Meta, _ *[]byte, _ *uint32) { m.Headers.TCPFlags |= SYN },
		"fragment":                func(_ *golden, m *Meta, _ *[]byte, _ *uint32) { m.Headers.Class = Fragment },
	} {
		g := golden{tcp4(3000), GSOTCPv4, 1000}
		super, m := g.super()
		hdr, n := super[:m.Headers.HdrLen], uint32(3000)
		change(&g, m, &hdr, &n)
		var s Segmenter
		testkit.ErrorIs(t, s.Init(hdr, m, n), ErrBadGSO, "%s", name)
	}
	g := golden{tcp4(3000), GSOTCPv4, 1000}
	super, m := g.super()
	var s Segmenter
	testkit.OK(t, s.Init(super[:66], m, 3000))
	for _, p := range [][2]uint32{{1, 1000}, {0, 999}, {0, 3001}, {3000, 0}, {0, 0}, {1000, 2001}, {4000, 1},
		{1000, 1<<32 - 1}} {
		testkit.ErrorIs(t, s.Piece(make([]byte, 66), &Meta{}, p[0], p[1]), ErrBadGSO, "piece [%d, +%d)", p[0], p[1])
	}
	testkit.ErrorIs(t, s.Piece(make([]byte, 65), &Meta{}, 0, 1000), ErrBadGSO, "no room")
}

func TestSegmenterOfOnePacket(t *testing.T) {
	for name, f := range map[string]frame{"data": tcp4(100), "ack": tcp4(0), "icmp": {src: "::1", dst: "::2", proto: 58,
		payload: pattern(9)}} {
		b := f.build()
		m := Meta{Csum: CsumBad}
		m.Headers = parsed(t, b)
		var s Segmenter
		n := uint32(len(b)) - uint32(m.Headers.HdrLen)
		if err := s.Init(b[:m.Headers.HdrLen], &m, n); err != nil || s.Segments() != 1 || s.MSS() == 0 {
			t.Fatalf("%s: %v, %d segments of %d", name, err, s.Segments(), s.MSS())
		}
		dst := make([]byte, m.Headers.HdrLen)
		var pm Meta
		if err := s.Piece(dst, &pm, 0, n); err != nil || pm != m || !bytes.Equal(dst, b[:len(dst)]) {
			t.Errorf("%s: %v %+v", name, err, pm)
		}
	}
}

func BenchmarkPiece(b *testing.B) {
	g := golden{tcp4(64000), GSOTCPv4, 1448}
	super, m := g.super()
	var s Segmenter
	testkit.OK(b, s.Init(super[:66], m, 64000))
	dst := make([]byte, 66)
	var pm Meta
	b.ReportAllocs()
	for b.Loop() {
		testkit.OK(b, s.Piece(dst, &pm, 1448, 1448))
	}
}

func TestFixedIDStays(t *testing.T) {
	for _, fixed := range []bool{false, true} {
		f := tcp4(3000)
		f.id, f.fragOff = 0xffff, 0x4000
		g := golden{f, GSOTCPv4, 1000}
		hdr, m := g.super()
		m.FixedID = fixed
		var s Segmenter
		testkit.OK(t, s.Init(hdr[:m.Headers.HdrLen], m, 3000))
		for i, want := range map[bool][]uint16{false: {0xffff, 0, 1}, true: {0xffff, 0xffff, 0xffff}}[fixed] {
			dst := make([]byte, m.Headers.HdrLen)
			var pm Meta
			testkit.OK(t, s.Piece(dst, &pm, uint32(i)*1000, 1000))
			id := binary.BigEndian.Uint16(dst[m.Headers.L3Off+4:])
			if id != want || pm.FixedID || !VerifyIPv4(&pm.Headers, dst) {
				t.Errorf("fixed %v, segment %d: identification %#x, want %#x; FixedID %v", fixed, i, id, want, pm.FixedID)
			}
		}
		var pm Meta
		testkit.OK(t, s.Piece(make([]byte, m.Headers.HdrLen), &pm, 0, 2000))
		testkit.Equal(t, "FixedID of a smaller super-packet", pm.FixedID, fixed)
	}
}

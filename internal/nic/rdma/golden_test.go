package rdma

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/splitter"
)

// goldenHeads are the headers behind UDP of each frame of TestGoldenFrames' messages, as in tables 5, 27, 30 and
// 38 of the specification: BTH, then RETH, AETH and immediate data if the frame has them; KKKKKKKK is the key b.mr.
// The last number is the length of the payload. Queue pair 000101 of a sends to 000100 of b, which answers.
var goldenHeads = []string{
	// WRITE of 600 bytes
	"06 40 ffff 00000100 00fffffe | 0000700000020001 KKKKKKKK 00000258 | 256",
	"07 40 ffff 00000100 00ffffff | 256",
	"08 40 ffff 00000100 80000000 | 88",
	"11 40 ffff 00000101 00000000 | 1f000001 | 0",
	// WRITE of 5 with immediate data
	"0b 70 ffff 00000100 80000001 | 0000700000020001 KKKKKKKK 00000005 | a1a2a3a4 | 5",
	"11 40 ffff 00000101 00000001 | 1f000002 | 0",
	// WRITE of 0
	"0a 40 ffff 00000100 80000002 | 0000700000020001 KKKKKKKK 00000000 | 0",
	"11 40 ffff 00000101 00000002 | 1f000003 | 0",
	// WRITE of 513 with immediate data, solicited
	"06 40 ffff 00000100 00000003 | 0000700000020001 KKKKKKKK 00000201 | 256",
	"07 40 ffff 00000100 00000004 | 256",
	"09 f0 ffff 00000100 80000005 | a1a2a3a4 | 1",
	"11 40 ffff 00000101 00000005 | 1f000004 | 0",
	// READ of 600
	"0c 40 ffff 00000100 00000006 | 0000700000020001 KKKKKKKK 00000258 | 0",
	"0d 40 ffff 00000101 00000006 | 1f000005 | 256",
	"0e 40 ffff 00000101 00000007 | 256",
	"0f 40 ffff 00000101 00000008 | 1f000005 | 88",
	// READ of 2
	"0c 40 ffff 00000100 00000009 | 0000700000020001 KKKKKKKK 00000002 | 0",
	"10 60 ffff 00000101 00000009 | 1f000006 | 2",
	// SEND of 600
	"00 40 ffff 00000100 0000000a | 256",
	"01 40 ffff 00000100 0000000b | 256",
	"02 40 ffff 00000100 8000000c | 88",
	"11 40 ffff 00000101 0000000c | 1f000007 | 0",
	// SEND of 300 with immediate data, solicited
	"00 40 ffff 00000100 0000000d | 256",
	"03 c0 ffff 00000100 8000000e | a1a2a3a4 | 44",
	"11 40 ffff 00000101 0000000e | 1f000008 | 0",
	// SEND of 3, solicited
	"04 d0 ffff 00000100 8000000f | 3",
	"11 40 ffff 00000101 0000000f | 1f000009 | 0",
	// SEND of 4 with immediate data
	"05 40 ffff 00000100 80000010 | a1a2a3a4 | 4",
	"11 40 ffff 00000101 00000010 | 1f00000a | 0",
	// WRITE to a key that does not exist
	"0a 70 ffff 00000100 80000011 | 0000700000020001 dddddddd 00000001 | 1",
	"11 40 ffff 00000101 00000011 | 6200000a | 0",
}

// Invariant: nic/rdma: Each packet has the bytes that the specification says, by IPv4 and IPv6.
func TestGoldenFrames(t *testing.T) {
	for name, c := range map[string]struct {
		a, b string
		// Ethernet, IP and UDP headers, from a to b and back. LLLL: IPv4 length, UUUU: UDP length, CCCC: IPv4 checksum,
		// SSSS: UDP source port.
		there, back string
	}{
		"IPv4": {"10.1.2.3", "10.4.5.6",
			"020000000002 020000000001 0800 45 68 LLLL 0000 4000 40 11 CCCC 0a010203 0a040506 SSSS 12b7 UUUU 0000",
			"020000000001 020000000002 0800 45 68 LLLL 0000 4000 40 11 CCCC 0a040506 0a010203 SSSS 12b7 UUUU 0000"},
		"IPv6": {"fd00::1:2", "fd00:1::3",
			"020000000002 020000000001 86dd 66800000 UUUU 11 40 fd000000000000000000000000010002" +
				"fd000001000000000000000000000003 SSSS 12b7 UUUU 0000",
			"020000000001 020000000002 86dd 66800000 UUUU 11 40 fd000001000000000000000000000003" +
				"fd000000000000000000000000010002 SSSS 12b7 UUUU 0000"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				g := &goldens{t: t, heads: [2]string{c.there, c.back}}
				g.run(netip.MustParseAddr(c.a), netip.MustParseAddr(c.b))
			})
		})
	}
}

type goldens struct {
	t     testing.TB
	heads [2]string
	pair  *pair
	n     int
}

func (g *goldens) run(ipA, ipB netip.Addr) {
	t := g.t
	p := &pair{a: newEnd(t, 1), b: newEnd(t, 2)}
	p.a.ip, p.b.ip = ipA, ipB
	testkit.Must(p.a.AddQP(control.QP{PD: p.a.pd, SendCQ: p.a.cq, RecvCQ: p.a.cq, MaxSend: 1}))(t) // has number 0x100
	first := true
	p.qa, p.qb = p.connect(func(p *control.QPPath) {
		p.MTU, p.DSCP, p.SendPSN, p.RecvPSN = 256, 26, 0xfffffe, 0x700000
		if !first {
			p.SendPSN, p.RecvPSN = p.RecvPSN, p.SendPSN
		}
		first = false
	})
	for i := range p.a.mem {
		p.a.mem[i], p.b.mem[i] = byte(i), byte(i*5)
	}
	g.pair = p
	p.fate = func(w *wire.Packet) (int, bool) {
		g.frame(w)
		return 1, false
	}
	const imm, off = 0xa1a2a3a4, 0x20001
	for _, w := range []control.WR{
		{Op: control.WRWrite, SGEs: []control.SGE{p.a.sge(1, 600)}}, {Op: control.WRWriteImm, SGEs: []control.SGE{p.a.sge(2,
			5)}},
		{Op: control.WRWrite}, {Op: control.WRWriteImm, SGEs: []control.SGE{p.a.sge(3, 513)}, Flags: control.WRSolicited},
		{Op: control.WRRead, SGEs: []control.SGE{p.a.sge(5000, 600)}}, {Op: control.WRRead, SGEs: []control.SGE{p.a.sge(6000,
			2)}},
		{Op: control.WRSend, SGEs: []control.SGE{p.a.sge(4, 600)}},
		{Op: control.WRSendImm, SGEs: []control.SGE{p.a.sge(4, 300)}, Flags: control.WRSolicited},
		{Op: control.WRSend, SGEs: []control.SGE{p.a.sge(4, 3)}, Flags: control.WRSolicited},
		{Op: control.WRSendImm, SGEs: []control.SGE{p.a.sge(4, 4)}},
		{Op: control.WRWrite, Key: 0xdddddddd, SGEs: []control.SGE{p.a.sge(9, 1)}},
	} {
		r := control.WR{Op: control.WRRecv, SGEs: []control.SGE{p.b.sge(0x30000, 1000)}}
		testkit.OK(t, p.b.PostRecv(control.Post{QPN: p.qb, WRs: []control.WR{r}}))
		if w.Op == control.WRWriteImm || w.Op == control.WRSendImm {
			w.Imm = imm
		}
		if w.Op != control.WRSend && w.Op != control.WRSendImm {
			w.Remote = base + off
			if w.Key == 0 {
				w.Key = p.b.mr
			}
		}
		p.a.post(p.qa, w)
		p.run()
	}
	if g.n != len(goldenHeads) {
		t.Errorf("%d frames, not %d", g.n, len(goldenHeads))
	}
	seen := 0
	for op := range uint8(numOps) {
		for _, h := range goldenHeads {
			if strings.HasPrefix(h, fmt.Sprintf("%02x ", op)) {
				seen++
				break
			}
		}
	}
	testkit.Equal(t, "operations that were seen", seen, numOps)
}

func (g *goldens) frame(w *wire.Packet) {
	t := g.t
	if g.n >= len(goldenHeads) {
		t.Fatalf("one frame more: % x", bytesOf(w))
	}
	want := goldenHeads[g.n]
	g.n++
	cut := strings.LastIndex(want, "|")
	var n int
	if _, err := fmt.Sscan(want[cut+1:], &n); err != nil {
		t.Fatal(err)
	}
	behind := testkit.Must(hex.DecodeString(strings.NewReplacer(" ", "", "|", "",
		"KKKKKKKK", fmt.Sprintf("%08x", g.pair.b.mr)).Replace(want[:cut])))(t)
	body := bytesOf(w)
	size := len(behind) + n + -n&3 + icrcLen
	if len(body) != size || !slices.Equal(body[:len(behind)], behind) {
		t.Fatalf("frame %d: % x of %d bytes, not % x of %d", g.n, body[:min(len(body), 32)], len(body), behind, size)
	}
	for i := range -n & 3 {
		if body[len(behind)+n+i] != 0 {
			t.Errorf("frame %d: padding is not 0", g.n)
		}
	}
	head := g.heads[0]
	if behind[7] == 1 {
		head = g.heads[1]
	}
	got := slices.Clone(w.Header)
	l4 := len(got) - 8
	port := binary.BigEndian.Uint16(got[l4:])
	if port < 0xc000 {
		t.Errorf("frame %d: from UDP port %d: not a dynamic one", g.n, port)
	}
	sum := uint16(0)
	if len(got) == 42 { // RFC 1071, over the header without the checksum field
		acc := uint32(0)
		for i := 14; i < l4; i += 2 {
			if i != 24 {
				acc += uint32(binary.BigEndian.Uint16(got[i:]))
			}
		}
		sum = ^uint16(acc + acc>>16)
	}
	full := testkit.Must(hex.DecodeString(strings.NewReplacer(" ", "", "LLLL", fmt.Sprintf("%04x", 28+size),
		"UUUU", fmt.Sprintf("%04x", 8+size), "CCCC", fmt.Sprintf("%04x", sum), "SSSS", fmt.Sprintf("%04x",
			port)).Replace(head)))(t)
	if !slices.Equal(got, full) {
		t.Fatalf("frame %d: headers % x, not % x", g.n, got, full)
	}
	if got, want := binary.LittleEndian.Uint32(body[size-icrcLen:]), icrcByBits(append(got,
		body[:size-icrcLen]...)); got != want {
		t.Errorf("frame %d: ICRC %#08x, not %#08x", g.n, got, want)
	}
	if w.Meta.GSOType != splitter.GSONone || w.Meta.Csum != splitter.CsumGood {
		t.Errorf("frame %d: %+v", g.n, w.Meta)
	}
}

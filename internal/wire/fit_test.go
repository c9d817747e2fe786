package wire

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/splitter"
)

// stream checks that frames are valid and carry all of payload, in order and once, in TCP with sequence numbers from
// seq on. It returns the lengths of the frames' payloads.
func stream(t testing.TB, got []received, payload []byte, seq uint32) (sizes []int) {
	t.Helper()
	off := 0
	for i := range got {
		h, b := verify(t, &got[i])
		if h.Class == splitter.TCP && h.Seq != seq+uint32(off) {
			t.Fatalf("frame %d: sequence %d, want %d", i, h.Seq-seq, off)
		}
		if off+len(b) > len(payload) || !bytes.Equal(b, payload[off:off+len(b)]) {
			t.Fatalf("frame %d: wrong payload", i)
		}
		off += len(b)
		sizes = append(sizes, len(b))
	}
	if off != len(payload) {
		t.Fatalf("%d of %d bytes came", off, len(payload))
	}
	return sizes
}

func TestSuperPacketsAreCutToWhatThePortTakes(t *testing.T) {
	const left, good = splitter.CsumPartial, splitter.CsumGood
	all := GSO(splitter.GSOTCPv4, splitter.GSOTCPv6, splitter.GSOUDPL4)
	for _, c := range []struct {
		name   string
		lim    Limits
		s      spec
		frames int
		gso    int
		csum   splitter.Csum
	}{
		{"whole", Limits{GSO: all, Csum: true, MaxFrame: 1514}, spec{n: 20000, mss: 1448}, 1, 1, left},
		{"to segments", Limits{Csum: true, MaxFrame: 1514}, spec{n: 20000, mss: 1448, flags: splitter.FIN | splitter.PSH}, 14,
			0, left},
		{"to segments with checksums", Limits{MaxFrame: 1514}, spec{n: 20000, mss: 1448}, 14, 0, good},
		{"super-packets need partial checksums", Limits{GSO: all}, spec{n: 20000, mss: 1448}, 14, 0, good},
		{"many segments", Limits{}, spec{n: 60000, mss: 536, v6: true}, 112, 0, good},
		{"to smaller ones", Limits{GSO: all, Csum: true, MaxBytes: 9000}, spec{n: 20000, mss: 1448, v6: true}, 3, 3, left},
		{"to k and a rest", Limits{GSO: all, Csum: true, MaxBytes: 54 + 2*1448}, spec{n: 5*1448 - 1, mss: 1448}, 3, 2, left},
		{"room for less than one", Limits{GSO: all, Csum: true, MaxBytes: 100}, spec{n: 3000, mss: 1448}, 3, 0, left},
		{"another type", Limits{GSO: GSO(splitter.GSOTCPv6), Csum: true}, spec{n: 3000, mss: 1448}, 3, 0, left},
		{"uso", Limits{}, spec{udp: true, n: 5001, mss: 1001}, 5, 0, good},
		{"uso6 to smaller ones", Limits{GSO: all, Csum: true, MaxBytes: 3072}, spec{udp: true, v6: true, n: 5001, mss: 1001},
			2, 2, left},
		{"tags do not count", Limits{Csum: true, MaxFrame: 1514}, spec{n: 2 * 1460, mss: 1460, tags: 1}, 2, 0, left},
		{"cwr", Limits{GSO: all, Csum: true}, spec{n: 20000, mss: 1448, flags: splitter.CWR}, 2, 1, left},
		{"cwr whole", Limits{GSO: all, Csum: true, ECN: true}, spec{n: 20000, mss: 1448, flags: splitter.CWR}, 1, 1, left},
		{"one segment", Limits{}, spec{n: 100, mss: 1448}, 1, 0, good},
		{"no payload", Limits{}, spec{n: 0, mss: 1448}, 1, 0, good},
		{"shorter than its MSS", Limits{GSO: all, Csum: true, MaxFrame: 1514}, spec{n: 1460, mss: 65535}, 1, 0, left},
		{"with a checksum", Limits{MaxFrame: 1514}, spec{n: 1440, mss: 9000, v6: true}, 1, 0, good},
		{"with a tag", Limits{Csum: true, MaxFrame: 1514}, spec{n: 1460, mss: 1461, tags: 1}, 1, 0, left},
		{"with cwr", Limits{GSO: all, Csum: true, MaxFrame: 1514}, spec{n: 1, mss: 65535, flags: splitter.CWR}, 1, 0, left},
		{"without payload", Limits{MaxFrame: 100}, spec{n: 0, mss: 65535}, 1, 0, good},
		{"uso, shorter", Limits{MaxFrame: 1514}, spec{udp: true, n: 1472, mss: 2000}, 1, 0, good},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := pair(t)
			b.setLimits(c.lim)
			c.s.off, c.s.seq, c.s.cut = 77, 0xffffff00, []int{0, 1, 1447, 0, 4096, 4095, 3}
			p := a.sent(a.packet(b.mac, c.s))
			taken(t, p)
			got := b.take()
			sizes := stream(t, got, a.ram[77:77+c.s.n], c.s.seq)
			super := 0
			for i, r := range got {
				m := &r.meta
				testkit.Equal(t, fmt.Sprintf("checksum of frame %d", i), m.Csum, c.csum)
				if m.GSOType != splitter.GSONone {
					super++
				} else if sizes[i] > int(c.s.mss) {
					t.Errorf("segment of %d bytes", sizes[i])
				}
				if c.lim.MaxBytes > 100 && len(r.frame) > int(c.lim.MaxBytes) {
					t.Errorf("frame of %d bytes", len(r.frame))
				}
				last := i == len(got)-1
				if want := c.s.flags & (splitter.FIN | splitter.PSH); !last && m.Headers.TCPFlags&want != 0 || last &&
					m.Headers.TCPFlags&want != want {
					t.Errorf("frame %d: flags %#x", i, m.Headers.TCPFlags)
				}
				if cwr := m.Headers.TCPFlags&splitter.CWR != 0; cwr != (i == 0 && c.s.flags&splitter.CWR != 0) {
					t.Errorf("frame %d: flags %#x", i, m.Headers.TCPFlags)
				}
			}
			if len(got) != c.frames || super != c.gso {
				t.Errorf("%d frames, %d super: %v", len(got), super, sizes)
			}
		})
	}
}

func TestECNIsTakenBackWhereItIsNotTaken(t *testing.T) {
	a, b := pair(t)
	for _, ecn := range []bool{false, true} {
		b.setLimits(Limits{Csum: true, GSO: GSO(splitter.GSOTCPv4), ECN: ecn})
		p := a.packet(b.mac, spec{n: 5000, mss: 1000})
		p.Meta.ECN = true
		a.send(p)
		got := b.take()
		if stream(t, got, a.ram[:5000], 0); len(got) != 1 || got[0].meta.GSOType != splitter.GSOTCPv4 ||
			got[0].meta.ECN != ecn {
			t.Errorf("%d frames", len(got))
		}
	}
}

func TestTooBigIsDropped(t *testing.T) {
	a, b := pair(t)
	b.setLimits(Limits{GSO: GSO(splitter.GSOTCPv4), Csum: true, MaxFrame: 1514})
	for name, sp := range map[string]spec{"frame": {n: 1461}, "segments": {n: 9000, mss: 1461},
		"one segment": {n: 1461, mss: 65535}, "partial": {n: 1461, csum: splitter.CsumPartial}} {
		p := a.sent(a.packet(b.mac, sp))
		testkit.Equal(t, name, p.Verdict, Drop(DropTooBig))
	}
	p := a.sent(a.packet(b.mac, spec{n: 1460}))
	if p.Verdict.Kind != Taken || b.link.Counters().Drops[DropTooBig] != 4 || len(b.take()) != 1 {
		t.Errorf("%+v", p.Verdict)
	}
}

func TestBusyMidwayGoesOnWithTheRest(t *testing.T) {
	a, b := pair(t)
	p := a.packet(b.mac, spec{n: 60000, mss: 1000})
	next := a.packet(b.mac, spec{n: 10, seq: 60000})
	total := 0
	var got []received
	for i, post := range []int{3, 0, 1, 40, 5, 1000} {
		b.post(post)
		p.Payload = append(p.Payload[:0:0], p.Payload...) // a retry may pass the payload in another slice
		a.send(p, next)
		total += post
		got = append(got, b.take()...)
		if total < 60 {
			want := Verdict{Kind: Busy, Queue: b}
			if p.Verdict != want || next.Verdict != want || len(got) != total {
				t.Fatalf("round %d: %+v, %+v, %d frames", i, p.Verdict, next.Verdict, len(got))
			}
		}
	}
	if p.Verdict.Kind != Taken || next.Verdict.Kind != Taken {
		t.Fatalf("%+v %+v", p.Verdict, next.Verdict)
	}
	stream(t, got, append(bytes.Clone(a.ram[:60000]), a.ram[:10]...), 0)
}

// A port gets busy in the middle of a packet. Before the retry its limits change, or another port takes over its MAC.
func TestBusyMidwayThenTakenWhole(t *testing.T) {
	a, b := pair(t)
	s := a.link.sw
	p := a.packet(b.mac, spec{n: 10000, mss: 1000})
	b.post(4)
	a.send(p)
	b.setLimits(Limits{Csum: true, GSO: GSO(splitter.GSOTCPv4)})
	b.post(10)
	a.send(p)
	got := b.take()
	stream(t, got, a.ram[:10000], 0)
	if len(got) != 5 || p.Verdict.Kind != Taken {
		t.Errorf("%d frames", len(got))
	}
	p = a.packet(b.mac, spec{n: 10000, mss: 1000})
	b.setLimits(Limits{})
	b.post(4)
	a.send(p)
	c := newHost(t, s, 3, LinkOptions{})
	c.mac = b.mac
	meet(c)
	a.send(p)
	stream(t, c.take(), a.ram[:10000], 0)
}

func TestPartialChecksums(t *testing.T) {
	a, b := pair(t)
	for _, lim := range []Limits{{Csum: true}, {}} {
		b.setLimits(lim)
		for _, sp := range []spec{{n: 1001}, {n: 1000, v6: true}, {n: 7, udp: true}, {n: 0},
			{n: 99, udp: true, v6: true, cut: []int{1, 1, 5}}} {
			sp.csum = splitter.CsumPartial
			p := a.packet(b.mac, sp)
			hdr := bytes.Clone(p.Header)
			a.send(p)
			got := b.take()
			stream(t, got, a.ram[:sp.n], 0)
			want := splitter.CsumGood
			if lim.Csum {
				want = splitter.CsumPartial
			}
			if got[0].meta.Csum != want || p.Meta.Csum != splitter.CsumPartial || !bytes.Equal(hdr, p.Header) {
				t.Errorf("%+v: %v; the sender's: %v", sp, got[0].meta.Csum, p.Meta.Csum)
			}
		}
	}
}

func TestChecksumsElsewhereAreCompleted(t *testing.T) {
	a, b := pair(t)
	b.setLimits(Limits{Csum: true}) // the port accepts partial checksums, but not these
	for _, start := range []uint16{0, 5, 12, 13, 14, 34, 35, 41, 42, 43, 60, 61, 200} {
		for _, off := range []uint16{0, 1, 6, 7, 16, 90} {
			p := a.packet(b.mac, spec{udp: true, n: 300, off: 3, cut: []int{1, 2, 30}})
			if start != 34 || off != 6 { // the place of UDP's own checksum
				a.send(partial(p, start, off))
				if p.Verdict != Drop(DropBadCsum) || len(b.take()) != 0 {
					t.Fatalf("%d+%d of UDP: %+v", start, off, p.Verdict)
				}
			}
			p = a.packet(b.mac, spec{udp: true, n: 300, off: 3, cut: []int{1, 2, 30}})
			p.Header[12], p.Header[13] = 0x88, 0x47 // MPLS: any place after the EtherType is allowed
			testkit.OK(t, splitter.Parse(p.Header, p.Len(), &p.Meta.Headers))
			partial(p, start, off)
			before := bytes.Clone(a.ram[3:303])
			whole := append(bytes.Clone(p.Header), before...)
			a.send(p)
			got := b.take()
			if start < 14 {
				if p.Verdict != Drop(DropBadCsum) || len(got) != 0 {
					t.Fatalf("%d+%d: %+v", start, off, p.Verdict)
				}
				continue
			}
			if p.Verdict.Kind != Taken || len(got) != 1 || got[0].meta.Csum != splitter.CsumNone {
				t.Fatalf("%d+%d: %+v", start, off, p.Verdict)
			}
			field := whole[start+off:]
			sum := ^splitter.Sum(whole[start:], 0)
			if sum == 0 {
				sum = 0xffff
			}
			binary.BigEndian.PutUint16(field, sum)
			if !bytes.Equal(got[0].frame, whole) {
				t.Fatalf("%d+%d: wrong bytes", start, off)
			}
			if !bytes.Equal(before, a.ram[3:303]) {
				t.Fatal("the sender's memory was written to")
			}
		}
	}
	p := a.packet(b.mac, spec{n: 2000})
	p.Meta.Csum, p.Meta.CsumStart = splitter.CsumPartial, 1900
	a.send(p)
	dropped(t, p, DropBadCsum) // not TCP's own field
}

func TestPayloadThatIsNotThere(t *testing.T) {
	a, b := pair(t)
	for _, sp := range []spec{{n: 10000, mss: 1000}, {n: 1000, csum: splitter.CsumPartial}} {
		p := a.packet(b.mac, sp)
		p.Payload[0].Len -= 10
		a.send(p)
		if sp.mss == 0 && p.Verdict != Drop(DropBadFrame) || sp.mss != 0 && p.Verdict.Kind != Taken {
			t.Errorf("%+v", p.Verdict)
		}
	}
	if n := b.link.Counters(); n.Drops[DropBadFrame] != 2 || n.Received != 9+1 {
		t.Errorf("%+v", n)
	}
}

func TestMemoryThatGoesAway(t *testing.T) {
	for name, c := range map[string]struct {
		up Impairment
		s  spec
	}{
		"summed": {Impairment{}, spec{n: 10000, mss: 1000}},
		"held":   {Impairment{Reorder: 1, HoldMax: time.Hour}, spec{n: 1000}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSwitch(t)
			a, b, d := newHost(t, s, 1, LinkOptions{Up: c.up}), newHost(t, s, 2, LinkOptions{}), newHost(t, s, 3, LinkOptions{})
			meet(b, d)
			p := a.packet(b.mac, c.s)
			testkit.OK(t, a.file.Truncate(0))
			a.send(p)
			if p.Verdict != Drop(DropFault) || len(b.take()) != 0 {
				t.Errorf("%+v", p.Verdict)
			}
			p = d.sent(d.packet(b.mac, spec{n: 1000}))
			if p.Verdict.Kind != Taken || len(b.take()) != 1 {
				t.Errorf("another port: %+v", p.Verdict)
			}
		})
	}
}

// Invariant: wire: Cut, refused and retried, every byte arrives once, in order.
func FuzzNothingIsLostOrRepeated(f *testing.F) {
	f.Add([]byte{3, 200, 40, 0, 9, 1, 2, 3, 4, 5, 6, 7, 8})
	f.Add([]byte{255, 255, 8, 1, 1, 77, 0, 3, 9, 200, 1, 0, 2, 60, 255, 2, 8, 8, 8})
	f.Add(bytes.Repeat([]byte{17, 240, 99, 5}, 20))
	f.Fuzz(func(t *testing.T, ops []byte) {
		a, b := pair(t)
		next := func() int {
			if len(ops) == 0 {
				return 0
			}
			v := ops[0]
			ops = ops[1:]
			return int(v)
		}
		change := func() {
			v := next()
			lim := Limits{Csum: v&1 != 0, ECN: v&2 != 0, MaxBytes: uint32(next()) << 6}
			if v&4 != 0 {
				lim.GSO = GSO(splitter.GSOTCPv4, splitter.GSOTCPv6)
			}
			b.setLimits(lim)
			b.post(next() % 9)
		}
		var got []received
		off := 0
		for n := 0; len(ops) > 0 && n < 50; n++ {
			var batch []*Packet
			for range 1 + next()%4 {
				sp := spec{off: off, n: next()<<8 | next(), mss: uint16(8 + next()), seq: uint32(off), v6: next()&1 != 0,
					flags: splitter.CWR | splitter.PSH}
				sp.n %= 4096
				sp.cut = []int{next(), next(), next()}
				if off+sp.n > ramSize {
					break
				}
				batch = append(batch, a.packet(b.mac, sp))
				off += sp.n
			}
			for tries := 0; len(batch) > 0; tries++ {
				change()
				if tries > 8 {
					b.post(-1)
				}
				a.send(batch...)
				var again []*Packet
				for _, p := range batch {
					if p.Verdict.Kind == Busy {
						again = append(again, p)
					} else if p.Verdict.Kind != Taken {
						t.Fatalf("%+v", p.Verdict)
					} else if len(again) > 0 {
						t.Fatal("a packet overtook a busy one")
					}
				}
				batch = again
				got = append(got, b.take()...)
			}
		}
		stream(t, got, a.ram[:off], 0)
	})
}

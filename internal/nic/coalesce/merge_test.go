package coalesce

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/splitter"
)

func TestMain(m *testing.M) { testkit.Main(m) }

var be = binary.BigEndian

type frame struct {
	hdr     []byte
	payload []byte
	meta    splitter.Meta
}

type spec struct {
	v6, partial bool
	vlans, opts int
	ext         int // with v6: length of the header of destination options, 0 for none
	seq         uint32
	id          uint16
	df          bool
	flags       uint8
	n           int
}

func (s spec) frame(t testing.TB) *frame {
	t.Helper()
	b := []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1}
	for i := range s.vlans {
		b = append(b, 0x81, 0, 0, byte(i))
	}
	tcp := make([]byte, 20+s.opts)
	be.PutUint16(tcp[0:], 1000)
	be.PutUint16(tcp[2:], 2000)
	be.PutUint32(tcp[4:], s.seq)
	be.PutUint32(tcp[8:], 77)
	tcp[12], tcp[13] = byte(len(tcp)/4)<<4, s.flags|splitter.ACK
	be.PutUint16(tcp[14:], 500)
	for i := 20; i < len(tcp); i++ {
		tcp[i] = 1 // the option "no operation"
	}
	if s.v6 {
		ip := make([]byte, 40+s.ext)
		ip[0], ip[6], ip[7], ip[8], ip[23], ip[24], ip[39] = 0x60, splitter.ProtoTCP, 64, 0xfd, 1, 0xfd, 2
		be.PutUint16(ip[4:], uint16(s.ext+len(tcp)+s.n))
		if s.ext > 0 {
			ip[6], ip[40], ip[41], ip[42], ip[43] = 60, splitter.ProtoTCP, byte(s.ext/8-1), 1, byte(s.ext-4) // PadN
		}
		b = append(append(b, 0x86, 0xdd), ip...)
	} else {
		ip := make([]byte, 20)
		ip[0], ip[8], ip[9], ip[12], ip[15], ip[16], ip[19] = 0x45, 64, splitter.ProtoTCP, 10, 1, 10, 2
		be.PutUint16(ip[2:], uint16(len(ip)+len(tcp)+s.n))
		be.PutUint16(ip[4:], s.id)
		if s.df {
			ip[6] = 0x40
		}
		b = append(append(b, 8, 0), ip...)
	}
	f := &frame{hdr: append(b, tcp...), payload: make([]byte, s.n)}
	for i := range f.payload {
		f.payload[i] = byte(uint32(i) + s.seq)
	}
	f.parse(t)
	splitter.FixIPv4(&f.meta.Headers, f.hdr)
	f.sum(s.partial)
	return f
}

func (f *frame) parse(t testing.TB) {
	t.Helper()
	testkit.OK(t, splitter.Parse(f.hdr, uint32(len(f.hdr)+len(f.payload)), &f.meta.Headers))
}

func (f *frame) sum(partial bool) {
	h := &f.meta.Headers
	f.meta.Csum, f.meta.CsumStart, f.meta.CsumOffset = splitter.CsumNone, 0, 0
	if partial {
		f.meta.Csum = splitter.CsumPartial
		f.meta.CsumStart, f.meta.CsumOffset, _ = splitter.CsumPlace(h)
		splitter.FixPartial(h, f.hdr, f.len())
		return
	}
	splitter.FixL4(h, f.hdr, f.len(), splitter.Sum(f.payload, 0))
}

func (f *frame) len() uint32 { return uint32(len(f.payload)) }

// bytes returns the frame; a partial checksum is completed in the copy.
func (f *frame) bytes() []byte {
	hdr, m := bytes.Clone(f.hdr), f.meta
	if m.Csum == splitter.CsumPartial {
		m.Complete(hdr, splitter.Sum(f.payload, 0))
	}
	return append(hdr, f.payload...)
}

func (f *frame) vouched() bool {
	return Vouched(f.hdr, &f.meta, f.len(), splitter.Sum(f.payload, 0))
}

// unit is a frame, or several merged ones.
type unit struct {
	Merge
	frames []*frame
}

// cut returns the unit's only frame, or the segments of the merged packet. It completes partial checksums.
func (u *unit) cut(t testing.TB) (out [][]byte) {
	t.Helper()
	if len(u.frames) == 1 {
		return [][]byte{u.frames[0].bytes()}
	}
	var b [splitter.MaxHeader]byte
	var m splitter.Meta
	hdr := u.Header(b[:], &m)
	var payload []byte
	for _, f := range u.frames {
		payload = append(payload, f.payload...)
	}
	var h splitter.Headers
	testkit.OK(t, splitter.Parse(append(bytes.Clone(hdr), payload...), uint32(len(hdr)+len(payload)), &h))
	if h != m.Headers || !splitter.VerifyIPv4(&h, hdr) || !m.CsumAllowed(h.FrameLen) {
		t.Fatalf("the header says\n%+v\nits Meta %+v", h, m)
	}
	var s splitter.Segmenter
	testkit.OK(t, s.Init(hdr, &m, uint32(len(payload))))
	for off := uint32(0); off < uint32(len(payload)); {
		n := min(s.MSS(), uint32(len(payload))-off)
		seg := make([]byte, len(hdr))
		var pm splitter.Meta
		testkit.OK(t, s.Piece(seg, &pm, off, n))
		pm.Complete(seg, splitter.Sum(payload[off:off+n], 0))
		out = append(out, append(seg, payload[off:off+n]...))
		off += n
	}
	return out
}

// merge merges frames like a NIC that receives them in this order and has at most one open Merge. max is as for Begin.
func merge(frames []*frame, max uint32) (units []*unit) {
	var open *unit
	for _, f := range frames {
		possible := Possible(&f.meta, f.len())
		if open != nil && possible && open.Continues(f.hdr, &f.meta, f.len()) && open.frames[0].vouched() && f.vouched() {
			open.Add(f.hdr, &f.meta, f.len())
			open.frames = append(open.frames, f)
			if open.Ended() {
				open = nil
			}
			continue
		}
		open = nil
		u := &unit{frames: []*frame{f}}
		units = append(units, u)
		if possible && u.Begin(f.hdr, &f.meta, f.len(), max) {
			open = u
		}
	}
	return units
}

// sizes returns the units' numbers of frames, and checks that cutting the units gives the frames again.
func sizes(t testing.TB, frames []*frame, units []*unit) (n []int) {
	t.Helper()
	var got, want [][]byte
	for _, u := range units {
		n = append(n, len(u.frames))
		got = append(got, u.cut(t)...)
	}
	for _, f := range frames {
		want = append(want, f.bytes())
	}
	if !slices.EqualFunc(got, want, bytes.Equal) {
		t.Fatalf("what was merged does not give the frames again:\n got %x\nwant %x", got, want)
	}
	return n
}

const anyLen = 1 << 20

// Invariant: nic: Cutting a merged GSO packet gives the original frames, byte for byte, with
// complete checksums.
func TestFramesOfAFlowAreMerged(t *testing.T) {
	for name, s := range map[string]spec{
		"v4": {}, "v4 partial": {partial: true}, "v4 fixed": {df: true},
		"v6": {v6: true}, "v6 partial": {v6: true, partial: true}, "tags and options": {vlans: 2, opts: 12},
	} {
		for _, fixed := range []bool{false, true} {
			if fixed && !s.df {
				continue
			}
			s := s
			s.seq, s.id = 0xfffff800, 0xfffe
			var frames []*frame
			for i := range 6 {
				s.n = 1000
				if i == 5 {
					s.n, s.flags = 10, splitter.PSH
				}
				frames = append(frames, s.frame(t))
				s.seq += 1000
				if !fixed {
					s.id++
				}
			}
			if n := sizes(t, frames, merge(frames, anyLen)); !slices.Equal(n, []int{6}) {
				t.Errorf("%s, fixed %v: %v", name, fixed, n)
			}
		}
	}
}

// Invariant: nic: Frames that Linux's GRO would not merge are not merged.
func TestDifferencesEndAMerge(t *testing.T) {
	const l3 = 14
	type change func(f *frame)
	ip := func(off int, v byte) change { return func(f *frame) { f.hdr[l3+off] ^= v } }
	tcp := func(off int, v byte) change { return func(f *frame) { f.hdr[int(f.meta.Headers.L4Off)+off] ^= v } }
	whole, joins := []int{3}, []int{1, 2}      // joins: the changed frame begins a new merge
	alone, last := []int{1, 1, 1}, []int{2, 1} // alone: no two frames merge; last: the changed frame ends the merge
	for name, c := range map[string]struct {
		s      spec
		change change // of the second of three frames
		also   bool   // change changes the third frame, too
		resum  bool   // the checksums of all frames are corrected
		want   []int
	}{
		"none":                      {resum: true, want: whole},
		"destination MAC":           {change: func(f *frame) { f.hdr[5] ^= 1 }, also: true, resum: true, want: joins},
		"source MAC":                {change: func(f *frame) { f.hdr[11] ^= 1 }, also: true, resum: true, want: joins},
		"tag":                       {s: spec{vlans: 1}, change: ip(1, 0x20), also: true, resum: true, want: joins},
		"TOS":                       {change: ip(1, 0x10), also: true, resum: true, want: joins},
		"ECN":                       {change: ip(1, 3), resum: true, want: alone},
		"TTL":                       {change: ip(8, 1), also: true, resum: true, want: joins},
		"DF":                        {change: ip(6, 0x40), also: true, resum: true, want: joins},
		"reserved bit":              {change: ip(6, 0x80), also: true, resum: true, want: alone},
		"source":                    {change: ip(13, 1), also: true, resum: true, want: joins},
		"destination":               {change: ip(17, 1), also: true, resum: true, want: joins},
		"identification":            {change: ip(4, 1), resum: true, want: alone},
		"IPv4 checksum":             {change: ip(10, 1), want: alone},
		"traffic class":             {s: spec{v6: true}, change: ip(0, 1), also: true, resum: true, want: joins},
		"flow label":                {s: spec{v6: true}, change: ip(2, 1), also: true, resum: true, want: joins},
		"hop limit":                 {s: spec{v6: true}, change: ip(7, 1), also: true, resum: true, want: joins},
		"v6 source":                 {s: spec{v6: true}, change: ip(20, 1), also: true, resum: true, want: joins},
		"source port":               {change: tcp(1, 1), also: true, resum: true, want: joins},
		"destination port":          {change: tcp(3, 1), also: true, resum: true, want: joins},
		"acknowledgment":            {change: tcp(11, 1), also: true, resum: true, want: joins},
		"window":                    {change: tcp(15, 1), also: true, resum: true, want: joins},
		"urgent pointer":            {change: tcp(19, 1), also: true, resum: true, want: joins},
		"options":                   {s: spec{opts: 12}, change: tcp(25, 1), also: true, resum: true, want: joins},
		"sequence":                  {change: tcp(5, 1), resum: true, want: alone},
		"reserved bits":             {change: tcp(12, 1), also: true, resum: true, want: alone},
		"FIN":                       {change: tcp(13, splitter.FIN), resum: true, want: alone},
		"SYN":                       {change: tcp(13, splitter.SYN), resum: true, want: alone},
		"RST":                       {change: tcp(13, splitter.RST), resum: true, want: alone},
		"URG":                       {change: tcp(13, splitter.URG), resum: true, want: alone},
		"ECE":                       {change: tcp(13, splitter.ECE), also: true, resum: true, want: alone},
		"CWR":                       {change: tcp(13, splitter.CWR), resum: true, want: alone},
		"CWR from there on":         {change: tcp(13, splitter.CWR), also: true, resum: true, want: joins},
		"CWR on all":                {s: spec{flags: splitter.CWR}, want: whole},
		"CWR on all but one":        {s: spec{flags: splitter.CWR}, change: tcp(13, splitter.CWR), resum: true, want: alone},
		"extension header":          {s: spec{v6: true, ext: 8}, want: whole},
		"another extension header":  {s: spec{v6: true, ext: 8}, change: ip(45, 1), also: true, resum: true, want: joins},
		"no ACK":                    {change: tcp(13, splitter.ACK), resum: true, want: alone},
		"PSH":                       {change: tcp(13, splitter.PSH), resum: true, want: last},
		"checksum":                  {change: tcp(16, 1), want: alone},
		"v6 checksum":               {s: spec{v6: true}, change: tcp(16, 1), want: alone},
		"partial checksum":          {s: spec{partial: true}, change: tcp(16, 1), want: alone},
		"checksum of ones":          {change: func(f *frame) { ones(f) }, want: alone},
		"a checksum known as bad":   {change: func(f *frame) { f.meta.Csum = splitter.CsumBad }, want: alone},
		"a super-packet":            {change: func(f *frame) { f.meta.GSOType = splitter.GSOTCPv4 }, want: alone},
		"a checksum vouched for":    {change: func(f *frame) { f.meta.Csum = splitter.CsumGood }, want: whole},
		"a checksum left to others": {change: func(f *frame) { f.sum(true) }, want: whole},
	} {
		t.Run(name, func(t *testing.T) {
			s := c.s
			s.n, s.seq, s.id = 1000, 5, 9
			var frames []*frame
			for i := range 3 {
				f := s.frame(t)
				if c.change != nil && (i == 1 || i == 2 && c.also) {
					c.change(f)
				}
				if c.resum {
					f.parse(t)
					splitter.FixIPv4(&f.meta.Headers, f.hdr)
					f.sum(s.partial)
				}
				frames = append(frames, f)
				s.seq, s.id = s.seq+1000, s.id+1
			}
			units := merge(frames, anyLen)
			var n []int
			if name == "partial checksum" { // a segmenter would write another checksum
				for _, u := range units {
					n = append(n, len(u.frames))
				}
			} else {
				n = sizes(t, frames, units)
			}
			if !slices.Equal(n, c.want) {
				t.Errorf("frames a packet: %v, want %v", n, c.want)
			}
		})
	}
}

// ones sets the first two bytes of payload so that the right checksum is 0, and writes 0xffff, which verifies, too.
func ones(f *frame) {
	h := &f.meta.Headers
	f.payload[0], f.payload[1] = 0, 0
	f.sum(false)
	field := f.hdr[h.L4Off+tcpCsum:]
	copy(f.payload, field[:2])
	f.sum(false)
	be.PutUint16(field, 0xffff)
}

// Invariant: nic: Frames that Linux's GRO would not merge are not merged.
func TestLengthsOfAMerge(t *testing.T) {
	for name, c := range map[string]struct {
		lens []int
		max  uint32
		v6   bool
		want []int
	}{
		"shorter last":     {lens: []int{100, 100, 50, 100}, want: []int{3, 1}},
		"longer":           {lens: []int{100, 100, 101, 101}, want: []int{2, 2}},
		"empty":            {lens: []int{100, 0, 100}, want: []int{1, 1, 1}},
		"empty first":      {lens: []int{0, 100, 100}, want: []int{1, 2}},
		"one byte, last":   {lens: []int{8, 1}, want: []int{2}},
		"below MinGSOSize": {lens: []int{7, 7}, want: []int{1, 1}},
		"max":              {lens: []int{100, 100, 100}, max: 54 + 250, want: []int{2, 1}},
		"max, exactly":     {lens: []int{100, 100, 100}, max: 54 + 200, want: []int{2, 1}},
		"max of one":       {lens: []int{100, 100}, max: 54 + 100, want: []int{1, 1}},
		"64 KiB":           {lens: slices.Repeat([]int{9000}, 16), want: []int{7, 7, 2}},
		"64 KiB, v6":       {lens: slices.Repeat([]int{65475 / 5}, 6), v6: true, want: []int{5, 1}},
		"beyond, v6":       {lens: slices.Repeat([]int{65475/5 + 1}, 5), v6: true, want: []int{4, 1}},
		"many":             {lens: slices.Repeat([]int{10}, MaxFrames+3), want: []int{MaxFrames, 3}},
	} {
		t.Run(name, func(t *testing.T) {
			s := spec{v6: c.v6}
			var frames []*frame
			for _, n := range c.lens {
				s.n = n
				frames = append(frames, s.frame(t))
				s.seq, s.id = s.seq+uint32(n), s.id+1
			}
			if c.max == 0 {
				c.max = anyLen
			}
			if n := sizes(t, frames, merge(frames, c.max)); !slices.Equal(n, c.want) {
				t.Errorf("frames a packet: %v, want %v", n, c.want)
			}
		})
	}
}

// Invariant: nic: Frames that Linux's GRO would not merge are not merged.
func TestIdentifications(t *testing.T) {
	for name, c := range map[string]struct {
		ids  []uint16
		df   bool
		want []int
	}{
		"rise":            {ids: []uint16{0xfffe, 0xffff, 0, 1}, want: []int{4}},
		"rise, DF":        {ids: []uint16{1, 2, 3}, df: true, want: []int{3}},
		"stay, DF":        {ids: []uint16{0, 0, 0}, df: true, want: []int{3}},
		"stay":            {ids: []uint16{5, 5, 5}, want: []int{3}},
		"rise, then stay": {ids: []uint16{1, 2, 2, 2}, df: true, want: []int{2, 2}},
		"stay, then rise": {ids: []uint16{1, 1, 2, 3}, df: true, want: []int{2, 2}},
		"by two":          {ids: []uint16{1, 3, 5}, want: []int{1, 1, 1}},
		"fall":            {ids: []uint16{3, 2, 1}, want: []int{1, 1, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			s := spec{n: 100, df: c.df}
			var frames []*frame
			for _, id := range c.ids {
				s.id = id
				frames = append(frames, s.frame(t))
				s.seq += 100
			}
			if n := sizes(t, frames, merge(frames, anyLen)); !slices.Equal(n, c.want) {
				t.Errorf("frames a packet: %v, want %v", n, c.want)
			}
		})
	}
}

// Invariant: hot path: Nothing is allocated for a packet.
func TestMergeAllocatesNothing(t *testing.T) {
	s := spec{n: 1000}
	a := s.frame(t)
	s.seq, s.id = 1000, 1
	b := s.frame(t)
	var hdr [splitter.MaxHeader]byte
	var m splitter.Meta
	n := testing.AllocsPerRun(100, func() {
		var g Merge
		if !g.Begin(a.hdr, &a.meta, a.len(), anyLen) || !g.Continues(b.hdr, &b.meta, b.len()) {
			t.Fatal("not merged")
		}
		g.Add(b.hdr, &b.meta, b.len())
		g.Header(hdr[:], &m)
	})
	testkit.Equal(t, "allocations", n, 0)
}

// FuzzMerge makes frames of one flow, changes some, and checks that no merged packet is too long or has too many
// frames, and that cutting the units gives the frames again.
func FuzzMerge(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, uint32(anyLen), byte(0))
	f.Add([]byte{0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0}, uint32(anyLen), byte(3))
	f.Add([]byte{0, 0, 0, 0, 2, 4, 1, 0, 0, 0, 0, 0, 5, 20, 7, 1}, uint32(400), byte(1))
	f.Add(bytes.Repeat([]byte{0, 0, 0, 0}, 60), uint32(anyLen), byte(4))
	f.Fuzz(func(t *testing.T, program []byte, limit uint32, kind byte) {
		s := spec{v6: kind&1 != 0, partial: kind&2 != 0, df: kind&4 != 0, vlans: int(kind>>3&3) % 3, opts: int(kind>>5&3) * 4,
			n: 100, seq: uint32(kind) << 24, id: uint16(kind) << 8}
		fixed := kind&128 != 0
		var frames []*frame
		for ; len(program) >= 4 && len(frames) < 300; program = program[4:] {
			op, pos, v, n := program[0], program[1], program[2], program[3]
			now := s
			now.n = max(0, s.n+int(int8(n)))
			f := now.frame(t)
			s.seq += uint32(now.n)
			if !fixed {
				s.id++
			}
			if op&1 != 0 && len(f.hdr) > 0 { // op&2: correct the IPv4 checksum; op&4: that of TCP
				f.hdr[int(pos)%len(f.hdr)] ^= v
				h := f.meta.Headers
				if splitter.Parse(f.hdr, uint32(len(f.hdr)+len(f.payload)), &h) != nil || h.Class != splitter.TCP ||
					int(h.HdrLen) != len(f.hdr) || h.FrameLen != uint32(len(f.hdr)+len(f.payload)) {
					continue // no TCP frame of the same lengths any more: it is left out
				}
				f.meta.Headers = h
				if op&2 != 0 {
					splitter.FixIPv4(&h, f.hdr)
				}
				if op&4 != 0 {
					f.sum(s.partial)
				}
			} else if op&2 != 0 && len(f.payload) > 0 {
				f.payload[int(pos)%len(f.payload)] ^= v
			}
			if op&8 != 0 {
				f.hdr[f.meta.Headers.L4Off+tcpFlags] |= splitter.PSH
				f.parse(t)
				f.sum(s.partial)
			}
			if f.meta.Csum == splitter.CsumPartial && !f.meta.CsumAllowed(f.meta.Headers.FrameLen) {
				continue // not allowed on the wire: it is left out
			}
			frames = append(frames, f)
		}
		units := merge(frames, limit)
		for _, u := range units {
			if len(u.frames) > 1 && u.Payload()+uint32(len(u.frames[0].hdr)) > limit || u.Frames() > MaxFrames {
				t.Fatalf("%d frames, %d bytes of payload: more than %d", u.Frames(), u.Payload(), limit)
			}
		}
		sizes(t, frames, units)
	})
}

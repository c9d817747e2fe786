package wire

import (
	"bytes"
	"encoding/binary"
	"maps"
	"slices"
	"testing"
	"time"

	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/splitter"
)

// rawFrame makes a packet from a frame's bytes. Its Header has the parsed headers; of frames that are neither TCP nor
// UDP at least hdr bytes, of malformed ones all, but at most splitter.MaxHeader bytes. The rest is in h's memory at
// off, in segments whose first lengths are cut.
func (h *host) rawFrame(frame []byte, hdr, off int, cut ...int) *Packet {
	h.t.Helper()
	p := &Packet{}
	m := &p.Meta.Headers
	testkit.OK(h.t, splitter.Parse(frame, uint32(len(frame)), m))
	switch m.Class {
	case splitter.TCP, splitter.UDP:
		hdr = int(m.HdrLen)
	case splitter.Malformed:
		hdr = min(len(frame), splitter.MaxHeader)
	default:
		hdr = min(max(hdr, splitter.EthLen, int(m.HdrLen)), len(frame), splitter.MaxHeader)
	}
	p.Header = bytes.Clone(frame[:hdr])
	rest := frame[hdr:]
	copy(h.ram[off:], rest)
	h.payload(p, off, len(rest), cut)
	p.Prepare()
	return p
}

func partial(p *Packet, start, offset uint16) *Packet {
	p.Meta.Csum, p.Meta.CsumStart, p.Meta.CsumOffset = splitter.CsumPartial, start, offset
	return p
}

// plainSum returns the one's complement sum of RFC 1071, not inverted.
func plainSum(b []byte) uint16 {
	var s uint32
	for i, c := range b {
		if i%2 == 0 {
			s += uint32(c) << 8
		} else {
			s += uint32(c)
		}
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}

// pseudo returns bytes with the sum of the pseudo-header for l4 bytes of protocol proto, from the source address in the
// IP header ip to the address to.
func pseudo(ip, to []byte, proto byte, l4 int) []byte {
	var b []byte
	if ip[0]>>4 == 4 {
		b = append(append(b, ip[12:16]...), to...)
	} else {
		b = append(append(b, ip[8:24]...), to...)
	}
	b = binary.BigEndian.AppendUint32(b, uint32(l4))
	return append(b, 0, 0, 0, proto)
}

// inner is an IP packet with TCP or UDP, whose checksum field has the pseudo-header's sum, as Linux sets it for
// CHECKSUM_PARTIAL.
type inner struct {
	b      []byte // from the IP header on; for "SRv6, inline" from TCP or UDP on
	l4     int
	field  int
	pseudo []byte
}

func newInner(s spec, payload []byte) inner {
	s.n = len(payload)
	frame := append(header(MAC{2, 0, 0, 0, 0, 1}, MAC{2, 0, 0, 0, 0, 2}, &s), payload...)
	in := inner{b: frame[14:], l4: 20}
	to, proto, off := in.b[16:20], byte(6), 16
	if s.v6 {
		in.l4, to = 40, in.b[24:40]
	}
	if s.udp {
		proto, off = 17, 6
	}
	in.field = in.l4 + off
	in.pseudo = pseudo(in.b, to, proto, len(in.b)-in.l4)
	binary.BigEndian.PutUint16(in.b[in.field:], plainSum(in.pseudo))
	return in
}

// tunnels returns frames by name, from the EtherType on, whose partial checksum belongs to headers that the switch does
// not parse, or that lie behind two tags.
func tunnels(s spec, payload []byte) map[string]struct {
	b  []byte
	in inner
} {
	in := newInner(s, payload)
	be := binary.BigEndian
	et, ppp, next := []byte{8, 0}, []byte{0, 0x21}, byte(4)
	if s.v6 {
		et, ppp, next = []byte{0x86, 0xdd}, []byte{0, 0x57}, 41
	}
	type tunnel = struct {
		b  []byte
		in inner
	}
	all := map[string]tunnel{}
	add := func(name string, parts ...[]byte) {
		all[name] = tunnel{bytes.Join(append(parts, in.b), nil), in}
	}
	add("QinQ", []byte{0x88, 0xa8, 0, 5, 0x81, 0, 0, 6}, et)
	add("three tags", []byte{0x88, 0xa8, 0, 5, 0x81, 0, 0, 6, 0x81, 0, 0, 7}, et)
	session := append(be.AppendUint16([]byte{0x88, 0x64, 0x11, 0, 0, 9}, uint16(2+len(in.b))), ppp...) // RFC 2516, 4
	add("PPPoE", session)
	add("PPPoE in a VLAN", []byte{0x81, 0, 0, 5}, session)
	add("MPLS", []byte{0x88, 0x47, 0, 1, 0, 64, 0, 2, 1, 64}) // RFC 3032, 2.1: two labels
	ip4 := []byte{0x45, 0, 0, 0, 0, 0, 0, 0, 64, next, 0, 0, 10, 9, 0, 1, 10, 9, 0, 2}
	be.PutUint16(ip4[2:], uint16(20+len(in.b)))
	be.PutUint16(ip4[10:], ^plainSum(ip4))
	add("IP in IPv4", []byte{8, 0}, ip4)
	gre := append(bytes.Clone(ip4), 0, 0, et[0], et[1])
	gre[9], gre[10], gre[11] = 47, 0, 0
	be.PutUint16(gre[2:], uint16(24+len(in.b)))
	be.PutUint16(gre[10:], ^plainSum(gre[:20]))
	add("GRE", []byte{8, 0}, gre)
	// SRv6: a segment routing header with two segments (RFC 8754, 2) and one segment left.
	srh := append([]byte{next, 4, 4, 1, 1, 0, 0, 0}, make([]byte, 32)...)
	srh[8], srh[23], srh[24], srh[39] = 0xfd, 2, 0xfd, 7
	outer := make([]byte, 40)
	outer[0], outer[6], outer[7], outer[8], outer[23], outer[24], outer[39] = 0x60, 43, 64, 0xfd, 1, 0xfd, 7
	be.PutUint16(outer[4:], uint16(len(srh)+len(in.b)))
	add("SRv6, encapsulated", []byte{0x86, 0xdd}, outer, srh)
	if s.v6 { // inline: the checksum uses the last segment's address
		in := in
		l4 := in.b[in.l4:]
		in.b = l4
		in.field -= in.l4
		in.l4 = 0
		proto := byte(6)
		if s.udp {
			proto = 17
		}
		srh, outer := bytes.Clone(srh), bytes.Clone(outer)
		srh[0] = proto
		be.PutUint16(outer[4:], uint16(len(srh)+len(l4)))
		in.pseudo = pseudo(outer, srh[8:24], proto, len(l4))
		be.PutUint16(l4[in.field:], plainSum(in.pseudo))
		all["SRv6, inline"] = tunnel{bytes.Join([][]byte{{0x86, 0xdd}, outer, srh, l4}, nil), in}
	}
	return all
}

// Invariant: wire: Partial checksums inside PPPoE, MPLS, SRv6 and stacked tags arrive correct.
func TestTunnelsArriveWithGoodSums(t *testing.T) {
	late := Impairment{Reorder: 1, HoldMax: time.Millisecond}
	for name, opts := range map[string]LinkOptions{"": {}, "late up": {Up: late}, "late down": {Down: late}} {
		sizes, lies := []int{0, 1, 1000, 1001}, 5
		if opts.Up.does() || opts.Down.does() || opts.Identity != nil { // the link delays each frame
			sizes, lies = sizes[3:], 1
		}
		s := newSwitch(t)
		a, b := newHost(t, s, 1, LinkOptions{Up: opts.Up}), newHost(t, s, 2, LinkOptions{Down: opts.Down})
		a.send(a.arp(broadcast))
		<-b.arrived
		b.send(b.arp(broadcast))
		b.take()
		for _, sp := range []spec{{}, {v6: true}, {udp: true}, {udp: true, v6: true}} {
			for _, n := range sizes {
				for kind, tn := range tunnels(sp, pattern[:n]) {
					frame := append(append(bytes.Clone(b.mac[:]), a.mac[:]...), tn.b...)
					l4 := len(frame) - len(tn.in.b) + tn.in.l4
					field := l4 + tn.in.field - tn.in.l4
					for i, lim := range []Limits{{Csum: true, MaxFrame: 1514}, {}} {
						b.setLimits(lim)
						for _, hdr := range []int{14, l4 - 1, field, field + 1, 128}[:lies] {
							for _, to := range []MAC{b.mac, broadcast} {
								copy(frame, to[:])
								p := partial(a.rawFrame(frame, hdr, 3, 1, 2, 30), uint16(l4), uint16(field-l4))
								ram := bytes.Clone(a.ram[:2000])
								a.send(p)
								if p.Verdict.Kind != Taken {
									t.Fatalf("%s %s %+v of %d: %+v", name, kind, sp, n, p.Verdict)
								}
								<-b.arrived
								got := b.take()
								if len(got) != 1 || len(got[0].frame) != len(frame) {
									t.Fatalf("%s %s: %d frames", name, kind, len(got))
								}
								f := bytes.Clone(got[0].frame)
								if kind == "QinQ" && lim.Csum { // it is left to the receiver, at the same place
									m := &got[0].meta
									if m.Csum != splitter.CsumPartial || int(m.CsumStart) != l4 || !bytes.Equal(f, frame) {
										t.Errorf("%s %s: %+v", name, kind, *m)
									}
									continue
								}
								if sum := plainSum(append(bytes.Clone(tn.in.pseudo), f[l4:]...)); sum != 0xffff {
									t.Errorf("%s %s %+v of %d to %d, header %d: sum %#x", name, kind, sp, n, i, hdr, sum)
								}
								copy(f[field:], frame[field:][:2])
								if !bytes.Equal(f, frame) || !bytes.Equal(ram, a.ram[:2000]) {
									t.Errorf("%s %s %+v of %d: other bytes changed", name, kind, sp, n)
								}
							}
						}
					}
				}
			}
		}
	}
}

func TestCompletedFramesMeetBusyPorts(t *testing.T) {
	a, b := pair(t)
	tn := tunnels(spec{}, pattern[:300])["PPPoE"]
	frame := append(append(bytes.Clone(b.mac[:]), a.mac[:]...), tn.b...)
	off := uint16(len(frame) - len(tn.in.b) + tn.in.l4)
	var batch []*Packet
	for i := range 6 {
		batch = append(batch, partial(a.rawFrame(frame, 14, i*1000), off, 16), a.packet(b.mac, spec{n: 10}))
	}
	b.post(3)
	a.send(batch...)
	for i, p := range batch {
		want := Verdict{Kind: Taken}
		if i >= 3 {
			want = Verdict{Kind: Busy, Queue: b}
		}
		if p.Verdict != want {
			t.Fatalf("packet %d: %+v", i, p.Verdict)
		}
	}
	b.post(-1)
	a.send(batch[3:]...)
	got := b.take()
	if len(got) != len(batch) {
		t.Fatalf("%d frames", len(got))
	}
	for i, r := range got {
		whole := append(bytes.Clone(tn.in.pseudo), r.frame[off:]...)
		if i%2 == 0 && plainSum(whole) != 0xffff || i%2 == 1 && len(r.frame) != 64 {
			t.Errorf("frame %d: %x", i, r.frame)
		}
	}
	if n := a.link.Counters(); n.Sent != 1+12 || n.Drops != [NumDropReasons]uint64{} {
		t.Errorf("%+v", n)
	}
}

func TestHeadersThatAreNotTheFrames(t *testing.T) {
	a, b := pair(t)
	for name, change := range map[string]func(p *Packet){
		"another type":   func(p *Packet) { p.Header[12] = 0x81 },
		"a part of them": func(p *Packet) { p.Meta.Headers.HdrLen = uint16(len(p.Header) + 1) },
	} {
		p := partial(a.rawFrame(append(append(bytes.Clone(b.mac[:]), a.mac[:]...), make([]byte, 100)...), 14, 0), 50, 2)
		change(p)
		a.send(p)
		if p.Verdict.Kind != Dropped || len(b.take()) != 0 {
			t.Errorf("%s: %+v", name, p.Verdict)
		}
	}
}

func refused(a, b *host) map[string]*Packet {
	eth := func(b2 ...[]byte) []byte {
		return bytes.Join(append([][]byte{b.mac[:], a.mac[:]}, b2...), nil)
	}
	raw := func(frame []byte, start, offset uint16) *Packet {
		return partial(a.rawFrame(frame, 14, 0), start, offset)
	}
	tcp, udp := spec{n: 1000}, spec{n: 1000, udp: true}
	ip6 := tunnels(spec{v6: true}, pattern[:1000])
	icmp := make([]byte, 64)
	icmp[0], icmp[6], icmp[7], icmp[40] = 0x60, 58, 255, 135
	binary.BigEndian.PutUint16(icmp[4:], 24)
	fragment := append(header(a.mac, b.mac, &udp), pattern[:1000]...)
	fragment[20] = 0x20 // the flag for more fragments
	malformed := append(header(a.mac, b.mac, &udp), pattern[:1000]...)
	malformed[17]++ // its IP header gives more bytes than the frame has
	super := a.packet(b.mac, spec{n: 3000, mss: 1000})
	super.Meta.CsumOffset--
	super6 := a.packet(b.mac, spec{n: 3000, mss: 1000, v6: true})
	super6.Meta.CsumStart = 30
	padded := a.rawFrame(append(eth(ip6["GRE"].b), make([]byte, 20)...), 14, 0)
	spoof := append(bytes.Clone(b.mac[:]), 2, 0x76, 0x6e, 0x69, 0x63, 0x77, 0x99, 0xb5)
	return map[string]*Packet{
		"the source address becomes the NIC's": raw(append(spoof, pattern[:90]...), 11, 0),
		"the type becomes control's":           raw(eth([]byte{0x99, 0xb5}, pattern[:90]), 12, 0),
		"half of the type":                     raw(eth([]byte{0x99, 0xb5}, pattern[:90]), 13, 0),
		"start before, field behind":           raw(eth([]byte{0x99, 0xb5}, pattern[:90]), 13, 30),
		"a tag's":                              raw(eth(ip6["PPPoE in a VLAN"].b), 14, 0),
		"the type behind a tag":                raw(eth(ip6["PPPoE in a VLAN"].b), 14, 2),
		"the IPv4 addresses of TCP":            partial(a.packet(b.mac, tcp), 24, 6),
		"the IPv4 addresses of UDP":            partial(a.packet(b.mac, udp), 30, 0),
		"UDP: ports":                           partial(a.packet(b.mac, udp), 34, 2),
		"TCP: UDP's field":                     partial(a.packet(b.mac, tcp), 34, 6),
		"UDP: a tunnel's":                      partial(a.packet(b.mac, udp), 92, 16),
		"the same sum, counted otherwise":      partial(a.packet(b.mac, tcp), 33, 17),
		"offset that wraps":                    partial(a.packet(b.mac, tcp), 35, 0xffff),
		"start past the end":                   partial(a.packet(b.mac, tcp), 1100, 0),
		"of a fragment":                        raw(fragment, 34, 6),
		"of a fragment, behind its headers":    raw(fragment, 100, 6),
		"of a malformed frame":                 raw(malformed, 34, 6),
		"of a malformed frame, far behind":     raw(malformed, 900, 6),
		"ARP's addresses":                      raw(eth([]byte{8, 6}, make([]byte, 46)), 28, 0),
		"ARP's last byte":                      raw(eth([]byte{8, 6}, make([]byte, 46)), 41, 0),
		"ICMPv6's target":                      raw(eth([]byte{0x86, 0xdd}, icmp), 54, 8),
		"ICMPv6's own":                         raw(eth([]byte{0x86, 0xdd}, icmp), 54, 2),
		"a source route":                       raw(eth(ip6["SRv6, inline"].b), 54, 3),
		"behind half of a source route":        raw(eth(ip6["SRv6, inline"].b), 93, 17),
		"a tunnel's outer address":             raw(eth(ip6["GRE"].b), 14, 16),
		"in the padding":                       partial(padded, 34, uint16(padded.Len()-34-1)),
		"half behind the end":                  raw(eth(ip6["MPLS"].b), 22, uint16(12+len(ip6["MPLS"].b)-22-1)),
		"too far in":                           raw(eth([]byte{0x88, 0x47}, make([]byte, 1400)), 800, 0),
		"a super-packet's":                     super,
		"a super-packet's addresses":           super6,
	}
}

type judged struct {
	dst, src  MAC
	etherType uint16
	class     splitter.Class
	vlans     uint8
	vlan      uint16
	flow      splitter.Flow
}

func judge(h *splitter.Headers, b []byte) judged {
	return judged{MAC(b[0:6]), MAC(b[6:12]), h.EtherType, h.Class, h.VLANs, h.VLAN, h.Flow}
}

// The bytes that a port gets parse to the headers in their Meta, and have the properties (judged) that the sent frame
// had.
//
// Invariant: wire: Completing a partial checksum changes no byte by which a frame was judged, but
// for the checksum field of TCP or UDP.
func FuzzWhatIsJudgedLeaves(f *testing.F) {
	a0, b0 := MAC{2, 0, 0, 0, 0, 1}, MAC{2, 0, 0, 0, 0, 2}
	spoof := append(append([]byte{}, b0[:]...), 2, 0x76, 0x6e, 0x69, 0x63, 0x77, 0x99, 0xb5)
	spoof = append(spoof, make([]byte, 60)...)
	sum := ^splitter.Sum(spoof[11:], 0)
	binary.BigEndian.PutUint16(spoof[30+1:], splitter.Add(sum, ^uint16(0x0188))) // the checksum, from byte 11 on: 0x0188
	f.Add(spoof, uint16(11), uint16(0), uint8(0), uint16(0), uint8(1))
	f.Add(spoof, uint16(14), uint16(4), uint8(0), uint16(0), uint8(0))
	for i, s := range []spec{{n: 50}, {n: 3000, v6: true}, {n: 3000, udp: true}, {n: 51, udp: true, v6: true, tags: 2}} {
		s.flags = splitter.PSH
		b := append(header(a0, b0, &s), pattern[:s.n]...)
		start, offset := uint16(34), uint16(16)
		if s.v6 {
			start = 54 + 4*uint16(s.tags)
		}
		if s.udp {
			offset = 6
		}
		f.Add(b, start, offset, uint8(0), uint16(0), uint8(i))
		f.Add(b, start, offset, uint8(1+i%3), uint16(1000), uint8(i))
		f.Add(b, uint16(30), uint16(0), uint8(0), uint16(0), uint8(i))
		f.Add(b, uint16(24), uint16(6), uint8(0), uint16(0), uint8(i))
	}
	for _, s := range []spec{{}, {v6: true, udp: true}} {
		all := tunnels(s, pattern[:99])
		for _, name := range slices.Sorted(maps.Keys(all)) {
			tn := all[name]
			b := append(append(append([]byte{}, b0[:]...), a0[:]...), tn.b...)
			off := len(b) - len(tn.in.b)
			f.Add(b, uint16(off+tn.in.l4), uint16(tn.in.field-tn.in.l4), uint8(0), uint16(0), uint8(2))
			f.Add(b, uint16(off), uint16(tn.in.field), uint8(0), uint16(0), uint8(5))
			f.Add(b, uint16(20), uint16(2), uint8(0), uint16(0), uint8(8))
		}
	}
	s := newSwitch(f)
	lossy := Impairment{Seed: 7, Loss: 0.2}
	a, l := newHost(f, s, 1, LinkOptions{}), newHost(f, s, 4, LinkOptions{Up: lossy})
	b, c := newHost(f, s, 2, LinkOptions{}), newHost(f, s, 3, LinkOptions{Down: lossy})
	f.Fuzz(func(t *testing.T, frame []byte, start, offset uint16, gso uint8, mss uint16, opts uint8) {
		if len(frame) < splitter.EthLen || len(frame) > 20_000 {
			return
		}
		for _, h := range []*host{a, b, c, l} {
			h.t = t
		}
		lim := Limits{Csum: opts&1 != 0, ECN: opts&2 != 0}
		if opts&4 != 0 {
			lim.GSO = GSO(splitter.GSOTCPv4, splitter.GSOTCPv6, splitter.GSOUDPL4)
		}
		b.setLimits(lim)
		c.setLimits(lim)
		for _, h := range []*host{b, c} { // an earlier frame may have moved the MAC of b or c to another port
			h.send(h.arp(broadcast))
		}
		for _, h := range []*host{a, b, c, l} {
			h.take()
		}
		from := a
		if opts&8 != 0 {
			from = l
		}
		p := from.rawFrame(frame, int(opts>>4)*9, 0, int(opts&15), 100)
		frame = frame[:p.Len()] // Prepare has cut padding
		partial(p, start, offset)
		m := &p.Meta
		m.GSOType, m.GSOSize = splitter.GSOType(gso%5), mss
		if gso&0x40 != 0 {
			m.Csum, m.CsumStart, m.CsumOffset = splitter.CsumNone, 0, 0
		}
		was := judge(&m.Headers, frame)
		before, header, ram := *m, bytes.Clone(p.Header), bytes.Clone(from.ram[:len(frame)])
		from.send(p)
		if p.Meta != before || !bytes.Equal(p.Header, header) || !bytes.Equal(from.ram[:len(frame)], ram) {
			t.Fatal("the sender's packet was written to")
		}
		if p.Verdict.Kind != Taken && p.Verdict.Kind != Dropped {
			t.Fatalf("%+v", p.Verdict)
		}
		n := 0
		for _, h := range []*host{a, b, c, l} {
			for _, r := range h.take() {
				n++
				leaves(t, &r, frame, &before, &was)
			}
		}
		if n > 0 && p.Verdict.Kind == Dropped && p.Verdict.Reason != DropLinkLoss {
			t.Fatalf("%d frames of one that was dropped: %+v", n, p.Verdict)
		}
	})
}

// leaves compares the frame r that a port got with the sent frame, whose metadata is m and whose checked properties are
// *was.
func leaves(t *testing.T, r *received, frame []byte, m *splitter.Meta, was *judged) {
	t.Helper()
	var h splitter.Headers
	if err := splitter.Parse(r.frame, uint32(len(r.frame)), &h); err != nil || h != r.meta.Headers {
		t.Fatalf("the bytes are not those that were judged: %v\n%+v\n%+v", err, h, r.meta.Headers)
	}
	now := judge(&h, r.frame)
	if now != *was {
		t.Fatalf("judged %+v\nleft   %+v", was, now)
	}
	if h.EtherType == EtherTypeControl || binary.BigEndian.Uint16(r.frame[12:]) == EtherTypeControl ||
		now.src == ControlMAC || now.dst == ControlMAC {
		t.Fatalf("a control frame came out: %x", r.frame[:14])
	}
	// A GSO packet may arrive whole, with whatever checksums its sender gave it, or cut, with new checksums.
	if m.GSOType != splitter.GSONone && (r.meta.GSOType == splitter.GSONone || len(r.frame) != len(frame)) {
		verify(t, r)
		return
	}
	want := bytes.Clone(frame)
	if m.Csum == splitter.CsumPartial {
		field := int(m.CsumStart) + int(m.CsumOffset)
		_, _, placed := splitter.CsumPlace(&h)
		if limit := int(h.JudgedLen()); !placed && (int(m.CsumStart) < limit || field < limit) {
			t.Fatalf("a checksum at %d+%d, %d bytes are judged", m.CsumStart, m.CsumOffset, limit)
		}
		if placed && (m.CsumStart != h.L4Off || field >= int(h.HdrLen)) {
			t.Fatalf("a checksum at %d+%d: %+v", m.CsumStart, m.CsumOffset, h)
		}
		if r.meta.Csum != splitter.CsumPartial {
			if !placed { // neither TCP nor UDP: the complement of the sum of all bytes from CsumStart
				sum := ^plainSum(frame[m.CsumStart:])
				if sum == 0 {
					sum = 0xffff
				}
				binary.BigEndian.PutUint16(want[field:], sum)
			} else {
				hdr, payload := r.frame[:h.HdrLen], r.frame[h.HdrLen:h.FrameLen]
				if splitter.VerifyL4(&h, hdr, uint32(len(payload)), splitter.Sum(payload, 0)) == splitter.CsumBad {
					t.Fatal("bad checksum")
				}
				copy(want[field:field+2], r.frame[field:])
			}
		} else if r.meta.CsumStart != m.CsumStart || r.meta.CsumOffset != m.CsumOffset {
			t.Fatalf("%+v", r.meta)
		}
	}
	if !bytes.Equal(r.frame, want) {
		t.Fatalf("left %x\nsent %x", r.frame, want)
	}
}

package nictest

import (
	"encoding/binary"
	"slices"
	"testing"

	"vnic.dev/vnic/splitter"
)

// segment describes a frame of the kernel's test of GRO (tools/testing/selftests/net/lib/gro.c, create_packet).
type segment struct {
	seq, n int
	flags  uint8 // besides ACK
	ack    byte  // added to the acknowledgment number
	v6     bool
	noDF   bool
	id     uint16
	opts   []byte // TCP options
	ipOpts []byte
	ext    byte // a byte in the payload of IPv6 destination options; 0: no such options
	frag   bool
	tos    byte // or IPv6's traffic class
	ttl    byte // added to the TTL
	badIP  bool
	badTCP bool
}

func (s segment) frame(a, b Guest) Frame {
	be := binary.BigEndian
	spec := Spec{V6: s.v6, Opts: len(s.opts), Payload: s.n, Seq: uint32(s.seq), Flags: s.flags | splitter.ACK, Port: 8000}
	if s.ext != 0 {
		spec.Ext = 8
	}
	f := Make(b.MAC(), a.MAC(), spec)
	var h splitter.Headers
	parse := func() { _ = splitter.Parse(f.Header, uint32(len(f.Header)+len(f.Payload)), &h) }
	parse()
	copy(f.Header[int(h.HdrLen)-len(s.opts):], s.opts)
	f.Header[h.L4Off+11] += s.ack
	if ip := f.Header[h.L3Off:]; s.v6 {
		ip[1] |= s.tos << 4
		if s.ext != 0 {
			ip[45] = s.ext
		}
		if s.frag { // IPPROTO_FRAGMENT
			head := []byte{ip[6], 0, 0, 0, 0, 0, 0, 0}
			ip[6] = 44
			be.PutUint16(ip[4:], be.Uint16(ip[4:])+8)
			f.Header = slices.Insert(f.Header, int(h.L4Off), head...)
		}
	} else {
		be.PutUint16(ip[4:], s.id)
		if !s.noDF {
			ip[6] |= 0x40
		}
		if s.frag {
			ip[6] |= 0x20
		}
		ip[1], ip[8] = s.tos, ip[8]+s.ttl
		if len(s.ipOpts) > 0 {
			ip[0] += byte(len(s.ipOpts) / 4)
			be.PutUint16(ip[2:], be.Uint16(ip[2:])+uint16(len(s.ipOpts)))
			f.Header = slices.Insert(f.Header, int(h.L4Off), s.ipOpts...)
		}
	}
	l4 := int(h.L4Off) + len(s.ipOpts)
	parse()
	splitter.FixIPv4(&h, f.Header)
	f.Partial, f.Start, f.Offset = false, 0, 0
	if !s.frag {
		splitter.FixL4(&h, f.Header, uint32(len(f.Payload)), splitter.Sum(f.Payload, 0))
	}
	if s.badTCP {
		f.Header[l4+17]--
	}
	if s.badIP {
		f.Header[h.L3Off+11]--
	}
	return f
}

// groCase is a case of the kernel's test: segments, and the payload length of each expected packet.
type groCase struct {
	send []segment
	want []int
	ip   int // IP version; 0: both
}

// groCases are cases of the kernel's test (gro.c, send_* and gro_receiver), by name: single, and cases that gro.py runs
// as hw_ipv4_* and hw_ipv6_*, except data_burst. Cases with IP in IP are left out: these NICs do not merge such
// packets.
func groCases() map[string]groCase {
	const n = 100 // PAYLOAD_LEN
	nth := func(i int, s segment) segment {
		s.seq, s.n = i*n, n
		return s
	}
	plain := func(from, to int) (list []segment) {
		for i := from; i < to; i++ {
			list = append(list, nth(i, segment{}))
		}
		return list
	}
	with := func(s segment, behind ...segment) []segment {
		return append([]segment{nth(0, segment{}), nth(1, s)}, behind...)
	}
	flag := func(flags uint8) []segment { // send_flags, for flags without payload
		return slices.Concat(plain(0, 2), []segment{{flags: flags}}, plain(3, 5))
	}
	ids := func(noDF bool, ids ...uint16) (list []segment) {
		for i, id := range ids {
			list = append(list, nth(i, segment{noDF: noDF, id: id}))
		}
		return list
	}
	ts := func(i int, value byte, order int) segment { // add_standard_tcp_options
		return nth(i, segment{opts: [][]byte{
			{1, 1, 8, 10, 0, 0, 0, value, 0, 0, 0, 0},
			{1, 8, 10, 0, 0, 0, value, 0, 0, 0, 0, 1},
			{8, 10, 0, 0, 0, value, 0, 0, 0, 0, 1, 1},
		}[order]})
	}
	large := func(head, more int) (list []segment) { // send_large
		mss := 4096 - head
		count, rest := (65535-head)/mss, (65535-head)%mss+more
		for i := range count {
			list = append(list, segment{seq: i * mss, n: mss})
		}
		return append(list, segment{seq: count * mss, n: rest}, segment{seq: (count + 1) * mss, n: rest})
	}
	const v4, v6 = 40, 60 // bytes of IP and TCP headers
	apart := []int{n, n}
	return map[string]groCase{
		"data_same":      {send: plain(0, 2), want: []int{2 * n}},
		"data_lrg_sml":   {send: []segment{{n: n}, {seq: n, n: n / 2}}, want: []int{n + n/2}},
		"data_lrg_1byte": {send: []segment{{n: n}, {seq: n, n: 1}}, want: []int{n + 1}},
		"data_sml_lrg":   {send: []segment{{n: n / 2}, {seq: n / 2, n: n}}, want: []int{n / 2, n}},
		"ack":            {send: []segment{{}, {}, {ack: 1}}, want: []int{0, 0, 0}},
		"flags_psh": {send: slices.Concat(plain(0, 2), []segment{nth(2, segment{flags: splitter.PSH})}, plain(3, 5)),
			want: []int{3 * n, 2 * n}},
		"flags_syn": {send: flag(splitter.SYN), want: []int{2 * n, 0, 2 * n}},
		"flags_rst": {send: flag(splitter.RST), want: []int{2 * n, 0, 2 * n}},
		"flags_urg": {send: flag(splitter.URG), want: []int{2 * n, 0, 2 * n}},
		"flags_cwr": {send: slices.Concat(plain(0, 1), []segment{nth(1, segment{flags: splitter.CWR}),
			nth(2, segment{flags: splitter.CWR})}, plain(3, 5)), want: []int{n, 2 * n, 2 * n}},
		"tcp_csum": {send: with(segment{badTCP: true}), want: apart},
		"tcp_seq":  {send: []segment{{n: n}, {seq: n + 1, n: n}}, want: apart},
		"tcp_ts": {send: []segment{ts(0, 0, 0), ts(1, 0, 0), ts(2, 100, 0), ts(3, 100, 1), ts(4, 100, 2)},
			want: []int{2 * n, n, n, n}},
		"tcp_opt": {send: []segment{ts(0, 0, 0), ts(1, 0, 0), nth(2, segment{opts: []byte{1, 3, 3, 0}})},
			want: []int{2 * n, n}},
		"ip_ecn":  {send: with(segment{tos: 2}), want: apart},
		"ip_tos":  {send: with(segment{tos: 1}), want: apart},
		"ip_csum": {send: with(segment{badIP: true}, nth(2, segment{})), want: []int{n, n, n}, ip: 4},
		"ip_ttl":  {send: with(segment{ttl: 1}), want: apart, ip: 4},
		"ip_opt": {send: with(segment{ipOpts: []byte{68, 4, 5, 0}}, nth(2, segment{})),
			want: []int{n, n, n}, ip: 4},
		"ip_frag4":            {send: with(segment{frag: true}), want: apart, ip: 4},
		"ip_id_df1_inc":       {send: ids(false, 8, 9), want: []int{2 * n}, ip: 4},
		"ip_id_df1_fixed":     {send: ids(false, 8, 8), want: []int{2 * n}, ip: 4},
		"ip_id_df0_inc":       {send: ids(true, 8, 9), want: []int{2 * n}, ip: 4},
		"ip_id_df0_fixed":     {send: ids(true, 8, 8), want: []int{2 * n}, ip: 4},
		"ip_id_df1_inc_fixed": {send: ids(false, 8, 9, 9), want: []int{2 * n, n}, ip: 4},
		"ip_id_df1_fixed_inc": {send: ids(false, 8, 8, 9), want: []int{2 * n, n}, ip: 4},
		"ip_frag6": {send: slices.Concat(plain(0, 2), []segment{nth(2, segment{frag: true})}, plain(3, 4)),
			want: []int{2 * n, n, n}, ip: 6},
		"ip_v6ext_same": {send: []segment{nth(0, segment{ext: 1}), nth(1, segment{ext: 1})}, want: []int{2 * n}, ip: 6},
		"ip_v6ext_diff": {send: []segment{nth(0, segment{ext: 1}), nth(1, segment{ext: 0x11})}, want: apart, ip: 6},
		"large_max":     {send: large(v4, 0), want: []int{65535 - v4, (65535 - v4) % (4096 - v4)}, ip: 4},
		"large_max, v6": {send: large(v6, 0), want: []int{65535 - v6, (65535 - v6) % (4096 - v6)}, ip: 6},
		"large_rem": {send: large(v4, 1), want: []int{16 * (4096 - v4), (65535-v4)%(4096-v4) + 1,
			(65535-v4)%(4096-v4) + 1}, ip: 4},
		"large_rem, v6": {send: large(v6, 1), want: []int{16 * (4096 - v6), (65535-v6)%(4096-v6) + 1,
			(65535-v6)%(4096-v6) + 1}, ip: 6},
		"single": {send: plain(0, 1), want: []int{n}},
	}
}

// The frames come together, or each in a batch of its own. A frame with FIN ends the case.
//
// Invariant: nic: Frames that Linux's GRO would not merge are not merged.
func kernelsMerges(t *testing.T, lab Lab, _ Traits) {
	for name, c := range groCases() {
		a, b, _ := holding(t, lab, Options{}) // for each case, which uses much guest memory
		for _, v6 := range []bool{false, true} {
			if c.ip == 4 && v6 || c.ip == 6 && !v6 {
				continue
			}
			for _, together := range []bool{false, true} {
				var fs []Frame
				for _, s := range append(slices.Clone(c.send), segment{seq: 200, flags: splitter.FIN}) {
					s.v6 = v6
					fs = append(fs, s.frame(a, b))
				}
				b.Post(0, len(fs))
				before, _ := b.Port().QueueCounters(0)
				if together {
					a.Send(0, fs...)
				} else {
					oneByOne(a, fs)
				}
				if after, _ := b.Port().QueueCounters(0); int(after.Packets-before.Packets) != len(fs) {
					t.Fatalf("%s: %d frames of %d were taken", name, after.Packets-before.Packets, len(fs))
				}
				if got := payloadsToFIN(t, b); !slices.Equal(got, c.want) {
					t.Errorf("%s, IPv6 %v, in one batch %v: payloads %v, want %v", name, v6, together, got, c.want)
				}
			}
		}
	}
}

// payloadsToFIN receives packets on b's queue 0 up to one with FIN, and returns the payload lengths of those before it.
func payloadsToFIN(t *testing.T, b Guest) (n []int) {
	for {
		got := b.Receive(0)
		f := got.Bytes()
		var h splitter.Headers
		must(t, splitter.Parse(f, uint32(len(f)), &h))
		switch {
		case h.Class == splitter.TCP && h.TCPFlags&splitter.FIN != 0:
			return n
		case h.Class == splitter.TCP:
			n = append(n, int(h.FrameLen)-int(h.HdrLen))
		case h.IPv6: // a fragment
			n = append(n, len(f)-splitter.EthLen-40-8-20)
		default:
			n = append(n, len(f)-splitter.EthLen-20-20)
		}
	}
}

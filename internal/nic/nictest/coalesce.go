package nictest

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"testing"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/splitter"
)

// tcpStream makes the frames of a TCP flow from a to b.
type tcpStream struct {
	a, b    Guest
	spec    Spec
	source  uint16
	id      uint16
	fixedID bool // IPv4: DF, with equal identifications
	whole   bool // checksums are complete, not partial
}

func (s *tcpStream) frame(n int, flags uint8) Frame {
	s.spec.Payload, s.spec.Flags = n, flags|splitter.ACK
	f := Make(s.b.MAC(), s.a.MAC(), s.spec)
	s.spec.Seq += uint32(n)
	s.finish(&f)
	return f
}

func (s *tcpStream) finish(f *Frame) {
	be := binary.BigEndian
	var h splitter.Headers
	_ = splitter.Parse(f.Header, uint32(len(f.Header)+len(f.Payload)), &h)
	be.PutUint16(f.Header[h.L4Off:], s.source)
	if !h.IPv6 {
		be.PutUint16(f.Header[h.L3Off+4:], s.id)
		if s.fixedID {
			f.Header[h.L3Off+6] |= 0x40
		} else {
			s.id++
		}
		splitter.FixIPv4(&h, f.Header)
	}
	if s.whole {
		splitter.FixL4(&h, f.Header, uint32(len(f.Payload)), splitter.Sum(f.Payload, 0))
		f.Partial, f.Start, f.Offset = false, 0, 0
	}
}

// frames makes frames with n bytes of payload in all, mss in each but the last one, which may have fewer and has PSH.
func (s *tcpStream) frames(n, mss int) (fs []Frame) {
	for ; n > mss; n -= mss {
		fs = append(fs, s.frame(mss, 0))
	}
	return append(fs, s.frame(n, splitter.PSH))
}

func (f *Frame) complete(t testing.TB) []byte {
	t.Helper()
	b := f.Bytes()
	var h splitter.Headers
	must(t, splitter.Parse(b, uint32(len(b)), &h))
	splitter.FixL4(&h, b[:h.HdrLen], h.FrameLen-uint32(h.HdrLen), splitter.Sum(b[h.HdrLen:], 0))
	return b
}

// cut returns the frames from which the received packet was merged, or the packet itself if it is no GSO packet. Their
// checksums are complete.
func (f *Frame) cut(t testing.TB) (frames [][]byte) {
	t.Helper()
	if f.GSO == splitter.GSONone {
		return [][]byte{f.complete(t)}
	}
	b := f.Bytes()
	m := splitter.Meta{GSOType: f.GSO, GSOSize: f.MSS, Csum: splitter.CsumGood}
	h := &m.Headers
	must(t, splitter.Parse(b, uint32(len(b)), h))
	hdr, payload := b[:h.HdrLen], b[h.HdrLen:]
	m.FixedID = !h.IPv6 && hdr[h.L3Off+6]&0x40 != 0
	m.AccECN = h.TCPFlags&splitter.CWR != 0
	if !splitter.VerifyIPv4(h, hdr) {
		t.Errorf("the IPv4 header's checksum is bad: %x", hdr)
	}
	var s splitter.Segmenter
	must(t, s.Init(hdr, &m, uint32(len(payload))))
	for off := uint32(0); off < uint32(len(payload)); {
		n := min(s.MSS(), uint32(len(payload))-off)
		out := make([]byte, int(h.HdrLen)+int(n))
		var pm splitter.Meta
		must(t, s.Piece(out, &pm, off, n))
		copy(out[h.HdrLen:], payload[off:off+n])
		pm.Complete(out[:h.HdrLen], splitter.Sum(out[h.HdrLen:], 0))
		frames = append(frames, out)
		off += n
	}
	return frames
}

// comeAs sends frames for b on a's queue 0, and returns the packets that b receives on queue q. It checks that cutting
// these gives the original frames, in order within each flow.
func comeAs(t testing.TB, a, b Guest, q int, fs []Frame) (got []Frame) {
	t.Helper()
	frames, packets := b.Port().Coalesced()
	a.Send(0, fs...)
	framesNow, packetsNow := b.Port().Coalesced()
	n := len(fs) - int(framesNow-frames) + int(packetsNow-packets)
	flows := map[splitter.Flow][][]byte{}
	flow := func(b []byte) splitter.Flow {
		var h splitter.Headers
		must(t, splitter.Parse(b, uint32(len(b)), &h))
		return h.Flow
	}
	for range n {
		f := b.Receive(q)
		if f.Dirty {
			t.Error("a header buffer has more in it than headers")
		}
		got = append(got, f)
		for _, s := range f.cut(t) {
			flows[flow(s)] = append(flows[flow(s)], s)
		}
	}
	for i := range fs {
		want := fs[i].complete(t)
		key := flow(want)
		if len(flows[key]) == 0 || !bytes.Equal(flows[key][0], want) {
			t.Fatalf("frame %d of %d, %d received: not the next of its flow:\n got %x\nsent %x", i, len(fs), n,
				firstOf(flows[key]), want)
		}
		flows[key] = flows[key][1:]
	}
	for key, rest := range flows {
		if len(rest) > 0 {
			t.Fatalf("%d frames too many of %v", len(rest), key)
		}
	}
	return got
}

func firstOf(list [][]byte) []byte {
	if len(list) == 0 {
		return nil
	}
	return list[0]
}

// Invariant: nic: Cutting a merged GSO packet gives the original frames, byte for byte, with
// complete checksums.
func coalesces(t *testing.T, lab Lab, traits Traits) {
	const mss, n = 1448, 20
	for name, c := range map[string]struct {
		spec    Spec
		fixedID bool
		whole   bool
		split   bool
		o       Options
	}{
		"v4": {}, "v4 split": {split: true}, "v4 fixed id": {fixedID: true},
		"v6 split":     {spec: Spec{V6: true}, split: true},
		"options, tag": {spec: Spec{Opts: 12, VLANs: 1}, split: true}, "checksums": {whole: true, split: true},
		"v6, checksums": {spec: Spec{V6: true}, whole: true}, "no peer to peer": {split: true, o: Options{NoP2P: true}},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := lab(t, c.o)
			q, bufs := 0, 1
			if c.split {
				q, bufs = 1, (n*mss+PayloadBuf-1)/PayloadBuf
				SplitTo(t, b, 1, 2000)
			}
			s := tcpStream{a: a, b: b, spec: c.spec, source: 1000, id: 0xfff8, fixedID: c.fixedID, whole: c.whole}
			s.spec.Seq = 0xffffff00
			local, remote := netip.MustParseAddrPort("10.0.0.2:2000"), netip.MustParseAddrPort("10.0.0.1:1000")
			if c.spec.V6 {
				fd := func(last byte) netip.Addr { return netip.AddrFrom16([16]byte{0: 0xfd, 15: last}) }
				local, remote = netip.AddrPortFrom(fd(b.MAC()[5]), 2000), netip.AddrPortFrom(fd(a.MAC()[5]), 1000)
			}
			id, err := b.Port().AddFlowCounter(control.FlowCounter{Proto: 6, Local: local, Remote: remote})
			must(t, err)
			var to tapLog
			b.Port().Link().SetTap(&to)
			before, _ := b.Port().QueueCounters(q)
			fs := s.frames(n*mss-100, mss)
			b.Post(q, 2*bufs)
			got := comeAs(t, a, b, q, fs)
			if len(got) != 1 || got[0].MSS != mss || got[0].Split != c.split || traits.Completes != got[0].Good ||
				traits.Completes == got[0].Partial || c.split && got[0].Buffers != bufs {
				t.Fatalf("%d received, the first: %v, mss %d, split %v, %d buffers", len(got), got[0].GSO, got[0].MSS,
					got[0].Split, got[0].Buffers)
			}
			frames, packets := b.Port().Coalesced()
			if frames != n || packets != 1 {
				t.Errorf("%d frames in %d packets are counted", frames, packets)
			}
			after, _ := b.Port().QueueCounters(q)
			flow, err := b.Port().ReadFlowCounter(id)
			must(t, err)
			type change struct{ was, now control.DirCounters }
			for what, d := range map[string]change{"queue": {before, after}, "flow": {now: flow.Rx}} {
				if d.now.Packets-d.was.Packets != n || d.now.Segments-d.was.Segments != n || d.now.RetransBytes != 0 ||
					d.now.HeaderBytes-d.was.HeaderBytes != uint64(n*len(fs[0].Header)) ||
					payloadOf(&d.now)-payloadOf(&d.was) != n*mss-100 {
					t.Errorf("%s: %+v, before %+v", what, d.now, d.was)
				}
			}
			countedMerged(t, b.Port(), q, fs[0].Header, n, n*mss-100, c.split, c.o)
			_, came := to.take()
			if len(came) != n {
				t.Fatalf("the tap saw %d frames", len(came))
			}
			for i, arrived := range came {
				hlen := uint32(0)
				if c.split && i == 0 {
					hlen = uint32(len(fs[0].Header))
				}
				kind := dma.Host
				if c.split {
					kind = dma.GPU
				}
				if !bytes.Equal(arrived.payload, fs[i].Payload) || arrived.place.Split != c.split ||
					arrived.place.HeaderLen != hlen || arrived.kind != kind || !arrived.place.Merged ||
					arrived.place.Bounced != (c.o.NoP2P && c.split) {
					t.Errorf("the tap saw of frame %d: %+v", i, arrived.place)
				}
			}
		})
	}
}

// mergeLong checks that a merged packet is no longer than the longest IP packet.
//
// Invariant: nic: Frames that Linux's GRO would not merge are not merged.
func mergeLong(t *testing.T, lab Lab, _ Traits) {
	const n, mss = 20, 8000
	a, b := lab(t, Options{})
	SplitTo(t, b, 1, 2000)
	s := tcpStream{a: a, b: b, source: 1000}
	b.Post(1, 3*n)
	for i, got := range comeAs(t, a, b, 1, s.frames(n*mss, mss)) {
		testkit.Equal(t, "payload", len(got.Payload), []int{8 * mss, 8 * mss, 4 * mss}[i])
	}
}

func payloadOf(c *control.DirCounters) uint64 { return c.DeviceBytes + c.GPUFileBytes + c.HostBytes }

// Invariant: nic: Nothing is merged for a driver that does not accept GSO packets.
func apart(t *testing.T, lab Lab, _ Traits) {
	const n, mss = 10, 1448
	run := func(t *testing.T, a, b Guest, want int) {
		s := tcpStream{a: a, b: b, source: 1000}
		b.Post(0, 2*n)
		testkit.Equal(t, "received", len(comeAs(t, a, b, 0, s.frames(n*mss, mss))), want)
	}
	t.Run("features", func(t *testing.T) {
		a, b := lab(t, Options{NoOffload: true})
		run(t, a, b, n)
	})
	t.Run("switched", func(t *testing.T) {
		a, b := lab(t, Options{})
		b.Port().SetCoalescing(false)
		run(t, a, b, n)
		b.Port().SetCoalescing(true)
		run(t, a, b, 1)
	})
}

// Invariant: nic: A merge that does not fit is undone, and loses no frame that fits alone.
func mergeShortage(t *testing.T, lab Lab, _ Traits) {
	const n, mss = 12, 1448 // a merge takes 5 buffers
	a, b := lab(t, Options{})
	SplitTo(t, b, 1, 2000)
	s := tcpStream{a: a, b: b, source: 1000}
	fs := s.frames(n*mss, mss)
	b.Post(1, 3)
	was := b.Port().Link().Counters().Busy
	a.Queue(0, fs...)
	for i := range 3 {
		got := b.Receive(1)
		if got.GSO != splitter.GSONone || !bytes.Equal(got.complete(t), fs[i].complete(t)) {
			t.Fatalf("frame %d: %v, %d bytes", i, got.GSO, len(got.Payload))
		}
	}
	for b.Port().Link().Counters().Busy == was { // until a frame has found no buffer
		runtime.Gosched()
	}
	b.Post(1, n)
	a.Sent(0)
	for i := 3; i < n; {
		got := b.Receive(1)
		for _, f := range got.cut(t) {
			if !bytes.Equal(f, fs[i].complete(t)) {
				t.Fatalf("frame %d is another", i)
			}
			i++
		}
	}
	c, err := b.Port().PortCounters()
	must(t, err)
	testkit.Equal(t, "drops", c.Rx.Drops, 0)
}

// mergeModel sends random frames of several flows; some end a merge or join none.
//
// Invariant: nic: Cutting a merged GSO packet gives the original frames, byte for byte, with
// complete checksums.
func mergeModel(t *testing.T, lab Lab, _ Traits) {
	a, b := lab(t, Options{})
	SplitTo(t, b, 1, 2000)
	const seed = 11
	rnd := rand.New(rand.NewPCG(seed, seed))
	flows := []tcpStream{{source: 1000}, {source: 1001, spec: Spec{V6: true}, whole: true}, {source: 1002, fixedID: true},
		{source: 1003, spec: Spec{VLANs: 1, Opts: 12}}}
	for i := range flows {
		flows[i].a, flows[i].b = a, b
	}
	merged := 0
	b.Post(1, 32)
	for round := range 40 {
		b.Port().SetCoalescing(round%8 != 7)
		var fs []Frame
		for len(fs) < 30 {
			s := &flows[rnd.IntN(len(flows))]
			for range 1 + rnd.IntN(6) {
				mss, flags := 1000, uint8(0)
				switch rnd.IntN(24) {
				case 0:
					mss = 1 + rnd.IntN(1200)
				case 1:
					flags = splitter.PSH
				case 2:
					flags = []uint8{splitter.FIN, splitter.ECE, splitter.CWR, splitter.URG, splitter.SYN, splitter.RST}[rnd.IntN(6)]
				case 3:
					s.spec.Seq += uint32(rnd.IntN(3000)) // a gap, as after a loss
				case 4:
					s.id += 7
				case 5:
					mss = 0
				case 6:
					if len(fs) > 0 {
						fs = append(fs, fs[rnd.IntN(len(fs))]) // repeated
					}
				}
				f := s.frame(mss, flags)
				if rnd.IntN(30) == 0 {
					tweak(&f, rnd)
				}
				fs = append(fs, f)
			}
		}
		fs = fs[:30]
		got := comeAs(t, a, b, 1, fs)
		merged += len(fs) - len(got)
		for i := range got {
			b.Post(1, got[i].Buffers)
		}
		if round%8 == 7 && len(got) != len(fs) {
			t.Errorf("round %d: merged, though that is off", round)
		}
	}
	if merged < 200 {
		t.Errorf("%d frames were merged: this tests little", merged)
	}
}

func tweak(f *Frame, rnd *rand.Rand) {
	var h splitter.Headers
	_ = splitter.Parse(f.Header, uint32(len(f.Header)+len(f.Payload)), &h)
	ip, tcp := f.Header[h.L3Off:], f.Header[h.L4Off:]
	switch rnd.IntN(4) {
	case 0:
		tcp[14]++
	case 1:
		tcp[11]++
	case 2:
		ip[1] ^= 0x10 // TOS, or IPv6's traffic class
	case 3:
		if h.IPv6 {
			ip[7]--
		} else {
			ip[8]--
		}
	}
	splitter.FixIPv4(&h, f.Header)
	if !f.Partial {
		splitter.FixL4(&h, f.Header[:h.HdrLen], uint32(len(f.Payload)), splitter.Sum(f.Payload, 0))
	}
}

// Invariant: nic: No packet overtakes its flow.
func mergeOrder(t *testing.T, lab Lab, _ Traits) {
	const n, mss = 9, 1000
	a, b := lab(t, Options{})
	s := tcpStream{a: a, b: b, source: 1000}
	fs := s.frames(n*mss, mss)
	f := &fs[3] // frame 3 becomes a fragment, which begins no merge and ends open merges
	f.Header[splitter.EthLen+6] |= 0x20
	var h splitter.Headers
	must(t, splitter.Parse(f.Header, uint32(len(f.Header)+len(f.Payload)), &h))
	if h.Class != splitter.Fragment {
		t.Fatal(h.Class)
	}
	splitter.FixIPv4(&h, f.Header)
	f.Partial, f.Start, f.Offset = false, 0, 0
	b.Post(0, n)
	a.Send(0, fs...)
	var sizes []int
	for i := 0; i < n; {
		got := b.Receive(0)
		was := i
		if i == 3 {
			if !bytes.Equal(got.Bytes(), f.Bytes()) {
				t.Fatalf("frame %d is not the fragment: %v", i, got.GSO)
			}
			i++
		} else {
			for _, x := range got.cut(t) {
				if i == 3 || !bytes.Equal(x, fs[i].complete(t)) {
					t.Fatalf("frame %d is another", i)
				}
				i++
			}
		}
		sizes = append(sizes, i-was)
	}
	if !slices.Equal(sizes, []int{3, 1, 5}) {
		t.Errorf("frames a packet: %v", sizes)
	}
}

// Invariant: nic: Only frames with good or partial checksums are merged.
func badSumAlone(t *testing.T, lab Lab, _ Traits) {
	const n, mss = 9, 1000
	for _, bad := range []int{0, 4, n - 1} {
		a, b := lab(t, Options{})
		s := tcpStream{a: a, b: b, source: 1000, whole: true}
		fs := s.frames(n*mss, mss)
		fs[bad].Payload[mss-1] ^= 1
		b.Post(0, n)
		a.Send(0, fs...)
		for i := 0; i < n; {
			got := b.Receive(0)
			if i == bad {
				if !bytes.Equal(got.Bytes(), fs[i].Bytes()) || got.Good || got.Partial {
					t.Errorf("frame %d, whose checksum is bad: good %v, partial %v, %v", i, got.Good, got.Partial, got.GSO)
				}
				i++
				continue
			}
			for _, f := range got.cut(t) {
				if i == bad || !bytes.Equal(f, fs[i].Bytes()) {
					t.Fatalf("bad frame %d: frame %d is another", bad, i)
				}
				i++
			}
		}
	}
}

package nictest

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/nic/flows"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/splitter"
)

// holdFor is nic.Config.Hold in these tests, by a clock that only the test advances.
const holdFor = time.Millisecond

type steps struct{ now atomic.Int64 }

func (c *steps) read() int64          { return c.now.Load() }
func (c *steps) turn(d time.Duration) { c.now.Add(int64(d)) }

// holding makes a lab in which time ends no merge until the test advances the clock. A change of the default RSS
// table would end open merges, so holding sets other tables.
func holding(t testing.TB, lab Lab, o Options) (a, b Guest, clock *steps) {
	t.Helper()
	clock = new(steps)
	clock.now.Store(1)
	o.Hold, o.Clock = holdFor, clock.read
	a, b = lab(t, o)
	for _, g := range []Guest{a, b} {
		rss, err := g.Port().RSS()
		must(t, err)
		rss.Table = []uint16{0, 0} // {0} may be the default table, and would change with it
		must(t, g.Port().SetRSS(rss))
	}
	return a, b, clock
}

func oneByOne(a Guest, fs []Frame) {
	for i := range fs {
		a.Send(0, fs[i])
	}
}

// givesAgain receives packets on b's queue q until cutting them has given as many frames as fs has, and returns the
// packets. The test fails unless these are the frames fs, in order within each flow.
func givesAgain(t testing.TB, b Guest, q int, fs []Frame) (got []Frame) {
	t.Helper()
	flowOf := func(b []byte) splitter.Flow {
		var h splitter.Headers
		must(t, splitter.Parse(b, uint32(len(b)), &h))
		return h.Flow
	}
	want := map[splitter.Flow][][]byte{}
	for i := range fs {
		f := fs[i].complete(t)
		want[flowOf(f)] = append(want[flowOf(f)], f)
	}
	for left := len(fs); left > 0; {
		f := b.Receive(q)
		got = append(got, f)
		if f.Dirty {
			t.Error("a header buffer has more in it than headers")
		}
		for _, s := range f.cut(t) {
			flow := want[flowOf(s)]
			if len(flow) == 0 || !bytes.Equal(flow[0], s) {
				t.Fatalf("packet %d, %d frames before the end: not the next of its flow:\n got %x\nsent %x", len(got), left, s,
					firstOf(flow))
			}
			want[flowOf(s)] = flow[1:]
			left--
		}
	}
	return got
}

// holds sends each frame in a batch of its own.
//
// Invariant: nic: Cutting a merged GSO packet gives the original frames, byte for byte, with
// complete checksums.
func holds(t *testing.T, lab Lab, traits Traits) {
	const mss, n = 1448, 20
	for name, c := range map[string]struct {
		spec  Spec
		whole bool
		mixed bool // every other checksum is complete
		split bool
		fixed bool
		o     Options
	}{
		"v4": {}, "v4 split": {split: true}, "v6 split": {spec: Spec{V6: true}, split: true}, "fixed id": {fixed: true},
		"options, tag": {spec: Spec{Opts: 12, VLANs: 1}, split: true}, "checksums": {whole: true, split: true},
		"some checksums": {mixed: true}, "extension header": {spec: Spec{V6: true, Ext: 8}, whole: true},
		"no peer to peer": {split: true, o: Options{NoP2P: true}},
	} {
		t.Run(name, func(t *testing.T) {
			a, b, _ := holding(t, lab, c.o)
			q, bufs := 0, 1
			if c.split {
				q, bufs = 1, (n*mss+PayloadBuf-1)/PayloadBuf
				SplitTo(t, b, 1, 2000)
			}
			s := tcpStream{a: a, b: b, spec: c.spec, source: 1000, id: 0xfff8, whole: c.whole, fixedID: c.fixed}
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
			link := b.Port().Link().Counters()
			var fs []Frame
			for left := n*mss - 100; left > 0; left -= mss {
				s.whole = c.whole || c.mixed && len(fs)%2 == 1
				flags := uint8(0)
				if left < mss {
					flags = splitter.PSH
				}
				fs = append(fs, s.frame(min(left, mss), flags))
			}
			b.Post(q, 2*bufs)
			oneByOne(a, fs[:n-1])
			if frames, _ := b.Port().Coalesced(); frames != 0 {
				t.Errorf("%d frames went to the guest before the last", frames)
			}
			a.Send(0, fs[n-1])
			got := givesAgain(t, b, q, fs)
			if len(got) != 1 || got[0].MSS != mss || got[0].Split != c.split || traits.Completes != got[0].Good ||
				traits.Completes == got[0].Partial || c.split && got[0].Buffers != bufs {
				t.Fatalf("%d received, the first: %v, mss %d, split %v, %d buffers", len(got), got[0].GSO, got[0].MSS,
					got[0].Split, got[0].Buffers)
			}
			frames, packets := b.Port().Coalesced()
			if frames != n || packets != 1 {
				t.Errorf("%d frames in %d packets are counted", frames, packets)
			}
			testkit.Equal(t, "frames that the link counts", b.Port().Link().Counters().Received-link.Received, n)
			after, _ := b.Port().QueueCounters(q)
			flow, err := b.Port().ReadFlowCounter(id)
			must(t, err)
			type change struct{ was, now control.DirCounters }
			for what, d := range map[string]change{"queue": {before, after}, "flow": {now: flow.Rx}} {
				if d.now.Packets-d.was.Packets != n || d.now.Segments-d.was.Segments != n || d.now.RetransBytes != 0 ||
					d.now.HeaderBytes-d.was.HeaderBytes != uint64(n*len(fs[0].Header)) || d.now.Drops != d.was.Drops ||
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
				hlen, kind := uint32(0), dma.Host
				if c.split {
					kind = dma.GPU
					if i == 0 {
						hlen = uint32(len(fs[0].Header))
					}
				}
				if !bytes.Equal(arrived.payload, fs[i].Payload) || arrived.place.Split != c.split ||
					arrived.place.HeaderLen != hlen || arrived.kind != kind || !arrived.place.Merged ||
					arrived.place.Bounced != (c.o.NoP2P && c.split) ||
					!bytes.Equal(arrived.header, fs[i].Header) || arrived.verdict.Kind != wire.Taken {
					t.Errorf("the tap saw of frame %d: %+v", i, arrived)
				}
			}
		})
	}
	t.Run("not without a time", func(t *testing.T) {
		a, b := lab(t, Options{})
		s := tcpStream{a: a, b: b, source: 1000}
		fs := s.frames(n*mss, mss)
		b.Post(0, n)
		oneByOne(a, fs)
		testkit.Equal(t, "packets", len(givesAgain(t, b, 0, fs)), n)
	})
}

// Invariant: nic: A merge ends at the latest when the configured time after its first frame is up;
// then its frames wait for buffers alone. At most 64 merges of a queue outlive their batch.
func holdTime(t *testing.T, lab Lab, _ Traits) {
	const mss = 1000
	a, b, clock := holding(t, lab, Options{})
	s := tcpStream{a: a, b: b, source: 1000}
	other := tcpStream{a: a, b: b, source: 1001}
	for range 5 {
		b.Post(0, 2)
		fs := []Frame{s.frame(mss, 0), s.frame(mss, 0), s.frame(mss, 0)}
		late := []Frame{other.frame(mss, 0), other.frame(mss, 0)}
		a.Send(0, fs[0])
		clock.turn(holdFor / 2)
		a.Send(0, fs[1])
		a.Send(0, late[0])
		clock.turn(holdFor/2 - 1)
		a.Send(0, fs[2])
		clock.turn(1)
		testkit.Equal(t, "packets of the first flow", len(givesAgain(t, b, 0, fs)), 1)
		a.Send(0, late[1])
		clock.turn(holdFor / 2)
		testkit.Equal(t, "packets of the second flow", len(givesAgain(t, b, 0, late)), 1)
	}
	b.Post(0, 3)
	fs := []Frame{s.frame(mss, 0), s.frame(mss, 0), s.frame(mss, 0)}
	a.Send(0, fs[0])
	b.Port().SetCoalescing(false) // ends the merge at once
	oneByOne(a, fs[1:])
	testkit.Equal(t, "packets while nothing is merged", len(givesAgain(t, b, 0, fs)), 3)
}

// The 65th flow ends the oldest merge. 64 flows of long frames just fill the queue's memory for held payload.
//
// Invariant: nic: A merge ends at the latest when the configured time after its first frame is up;
// then its frames wait for buffers alone. At most 64 merges of a queue outlive their batch.
func holdFlows(t *testing.T, lab Lab, _ Traits) {
	const flows = 65
	for _, mss := range []int{200, 8900} {
		a, b, _ := holding(t, lab, Options{})
		b.Post(0, 2*flows) // gve's buffers are smaller
		var streams []tcpStream
		var first, second []Frame
		for i := range flows {
			streams = append(streams, tcpStream{a: a, b: b, source: uint16(1500 + i)})
			first = append(first, streams[i].frame(mss, 0))
		}
		for i := range flows {
			second = append(second, streams[i].frame(mss, splitter.PSH))
		}
		a.Send(0, first[:32]...)
		oneByOne(a, first[32:])
		got := givesAgain(t, b, 0, first[:1])
		oneByOne(a, second) // a sender's batch has room for 32 frames
		got = append(got, givesAgain(t, b, 0, append(slices.Clone(first[1:]), second...))...)
		for i, f := range got {
			want, port := 2*mss, 1500+i-1
			if i < 2 { // the first flow's frames, one by one
				want, port = mss, 1500
			}
			hdr := f.Header
			if n := len(f.Bytes()) - 54; n != want || int(binary.BigEndian.Uint16(hdr[14+20:])) != port {
				t.Errorf("frames of %d: packet %d has %d bytes, of flow %d", mss, i, n, binary.BigEndian.Uint16(hdr[14+20:]))
			}
		}
		testkit.Equal(t, "packets", len(got), flows+1)
	}
}

// Invariant: nic: When a queue stops, its held frames are delivered or dropped, each counted once.
func holdStop(t *testing.T, lab Lab, traits Traits) {
	const mss, n = 1000, 5
	a, b, clock := holding(t, lab, Options{})
	SplitTo(t, b, 1, 2000)
	s := tcpStream{a: a, b: b, source: 1000}
	taken := func() uint64 {
		t.Helper()
		rx, _ := b.Port().QueueCounters(1)
		testkit.Equal(t, "drops", rx.Drops, 0)
		return rx.Packets
	}
	for what, f := range map[string]func(){
		"rule": func() {
			_, err := b.Port().AddFlow(control.FlowRule{Proto: 6, DstPort: 7, Queue: 0})
			must(t, err)
		},
		"flush": func() { b.Port().FlushRx(1) },
		"split off": func() {
			b.SetSplit(1, false)
			b.SetSplit(1, true)
		},
	} {
		b.Post(1, 2)
		var fs []Frame
		for range n {
			fs = append(fs, s.frame(mss, 0))
		}
		was := taken()
		oneByOne(a, fs)
		testkit.Equal(t, what+": frames before", taken()-was, 0)
		f()
		testkit.Equal(t, what+": frames", taken()-was, n)
	}

	b.SetSplit(2, true) // without buffers
	_, err := b.Port().AddFlow(control.FlowRule{Proto: 6, DstPort: 3000, Queue: 2})
	must(t, err)
	s.spec.Port = 3000
	oneByOne(a, []Frame{s.frame(mss, 0), s.frame(mss, 0)})
	var to tapLog
	b.Port().Link().SetTap(&to)
	b.SetSplit(2, false)
	if !traits.SplitStops { // then held frames wait for buffers until patience ends
		clock.turn(holdFor + limits.Patience.Here())
	}
	for rx := (control.DirCounters{}); rx.Drops != 2; rx, _ = b.Port().QueueCounters(2) {
		runtime.Gosched()
	}
	drops := b.Port().Link().Counters().Drops
	testkit.Equal(t, "reasons", drops[wire.DropDisabled]+drops[wire.DropStopped]+drops[wire.DropNoBuffer], 2)
	_, came := to.take()
	testkit.Equal(t, "frames that the tap saw", len(came), 2)
	for _, c := range came {
		testkit.Equal(t, "verdict", c.verdict.Kind, wire.Dropped)
	}
	f := Make(b.MAC(), a.MAC(), Spec{Port: 7, Payload: mss, Flags: splitter.PSH})
	b.Post(0, 1)
	arrives(t, a, b, 0, f)
}

// Invariant: nic: A merge that does not fit is undone, and loses no frame that fits alone.
func holdShortage(t *testing.T, lab Lab, _ Traits) {
	const n, mss = 12, 1448 // a merge takes 5 buffers
	for _, posted := range []int{0, 3} {
		a, b, clock := holding(t, lab, Options{})
		SplitTo(t, b, 1, 2000)
		s := tcpStream{a: a, b: b, source: 1000}
		fs := s.frames(n*mss, mss)
		b.Post(1, posted)
		oneByOne(a, fs[:n-1])
		was := b.Port().Link().Counters().Busy
		a.Queue(0, fs[n-1]) // the last frame of fs ends the merge
		for b.Port().Link().Counters().Busy == was {
			runtime.Gosched()
		}
		if posted > 0 {
			givesAgain(t, b, 1, fs[:posted])
		}
		b.Post(1, n+1) // the queue may put a merge's frames one by one; one more for rest
		a.Sent(0)
		givesAgain(t, b, 1, fs[posted:])
		rest := []Frame{s.frame(mss, 0)} // a merge that ends when its time is up
		a.Send(0, rest[0])
		clock.turn(holdFor)
		givesAgain(t, b, 1, rest)
		c, err := b.Port().PortCounters()
		must(t, err)
		testkit.Equal(t, "drops", c.Rx.Drops, 0)
	}
}

// Invariant: nic: When a queue stops, its held frames are delivered or dropped, each counted once.
func holdLost(t *testing.T, lab Lab, _ Traits) {
	const n, mss = 3, 1000
	a, b, clock := holding(t, lab, Options{})
	var to tapLog
	b.Port().Link().SetTap(&to)
	s := tcpStream{a: a, b: b, source: 1000}
	for range n {
		a.Send(0, s.frame(mss, 0))
	}
	clock.turn(holdFor + limits.Patience.Here())
	for rx := (control.DirCounters{}); rx.Drops < n; rx, _ = b.Port().QueueCounters(0) {
		runtime.Gosched()
	}
	rx, _ := b.Port().QueueCounters(0)
	link := b.Port().Link().Counters()
	if rx.Drops != n || rx.DroppedBytes != n*mss || link.Drops[wire.DropNoBuffer] != n {
		t.Errorf("%+v, link %+v", rx, link)
	}
	lost := flows.Counts{Lost: n * mss}
	lost.Drops[wire.DropNoBuffer] = n
	testkit.Equal(t, "account of the flow", received(b.Port(), 0, 2000), lost)
	_, came := to.take()
	for _, c := range came {
		testkit.Equal(t, "verdict", c.verdict, wire.Drop(wire.DropNoBuffer))
	}
	testkit.Equal(t, "frames that the tap saw", len(came), n)
	b.Post(0, 1)
	f := s.frame(mss, splitter.PSH)
	arrives(t, a, b, 0, f)
}

// The queue never has enough buffers for a whole merge.
//
// Invariant: nic: A merge that does not fit is undone, and loses no frame that fits alone.
func holdPieces(t *testing.T, lab Lab, _ Traits) {
	const n, mss = 40, 1448
	a, b, clock := holding(t, lab, Options{})
	SplitTo(t, b, 1, 2000)
	s := tcpStream{a: a, b: b, source: 1000}
	var fs []Frame
	for range n {
		fs = append(fs, s.frame(mss, 0))
	}
	oneByOne(a, fs)
	clock.turn(holdFor)
	for i := range fs {
		b.Post(1, 1)
		givesAgain(t, b, 1, fs[i:i+1])
	}
}

// firstFragment returns the first fragment of a TCP packet from a to b, with ports 1000 and 2000.
func firstFragment(t *testing.T, a, b Guest, payload int) Frame {
	t.Helper()
	f := Make(b.MAC(), a.MAC(), Spec{Payload: payload})
	f.Header[splitter.EthLen+6] |= 0x20 // more fragments
	var h splitter.Headers
	must(t, splitter.Parse(f.Header, uint32(len(f.Header)+len(f.Payload)), &h))
	splitter.FixIPv4(&h, f.Header)
	f.Partial, f.Start, f.Offset = false, 0, 0
	return f
}

// Invariant: nic: No packet overtakes its flow.
func holdOrder(t *testing.T, lab Lab, traits Traits) {
	const mss = 1000
	a, b, _ := holding(t, lab, Options{})
	SplitTo(t, b, 1, 2000)
	frag := firstFragment(t, a, b, mss)
	long := Make(b.MAC(), a.MAC(), Spec{V6: true, Ext: 200, Opts: 40, Payload: mss}) // its headers are too long to split
	unsplit := 0
	if traits.OwnUnsplit {
		unsplit = 1
	}
	for _, together := range []bool{false, true} {
		for _, c := range []struct {
			f  Frame
			v6 bool
			q  int
		}{{frag, false, 0}, {long, true, unsplit}} {
			var to tapLog
			b.Port().Link().SetTap(&to)
			b.Post(1, 2)
			b.Post(c.q, 1)
			s := tcpStream{a: a, b: b, source: 1000, spec: Spec{V6: c.v6}}
			fs := []Frame{s.frame(mss, 0), s.frame(mss, 0)}
			if together {
				a.Send(0, fs[0], fs[1], c.f)
			} else {
				oneByOne(a, append(slices.Clone(fs), c.f))
			}
			testkit.Equal(t, "packets", len(givesAgain(t, b, 1, fs)), 1)
			if got := b.Receive(c.q); len(got.Bytes()) != len(c.f.Bytes()) {
				t.Errorf("%d bytes of %d", len(got.Bytes()), len(c.f.Bytes()))
			}
			b.Port().Link().SetTap(nil)
			_, came := to.take()
			if len(came) != 3 || !came[0].place.Merged || !came[1].place.Merged || came[2].place.Merged {
				t.Errorf("in one batch %v, IPv6 %v: %+v", together, c.v6, came)
			}
		}
	}
}

// A frame must not join a merge past a frame of its flow that waits for buffers.
//
// Invariant: nic: No packet overtakes its flow.
func holdWaits(t *testing.T, lab Lab, _ Traits) {
	const mss = 1000
	a, b, clock := holding(t, lab, Options{})
	s := tcpStream{a: a, b: b, source: 1000, fixedID: true}
	fs := []Frame{s.frame(mss, 0), s.frame(mss, 0), s.frame(0, 0), s.frame(mss, 0)}
	oneByOne(a, fs[:2])
	was := b.Port().Link().Counters().Busy
	a.Queue(0, fs[2:]...)
	for b.Port().Link().Counters().Busy == was {
		runtime.Gosched()
	}
	b.Post(0, 4) // the queue may put the frames one by one
	a.Sent(0)
	clock.turn(holdFor)
	if n := len(givesAgain(t, b, 0, fs)); n < 3 {
		t.Errorf("%d packets", n)
	}

	// A fragment for the flow's queue ends the merge and comes after it.
	frag := firstFragment(t, a, b, mss)
	fs = []Frame{s.frame(mss, 0), s.frame(mss, 0)}
	b.Post(0, 2)
	oneByOne(a, []Frame{fs[0], fs[1], frag})
	testkit.Equal(t, "packets", len(givesAgain(t, b, 0, fs)), 1)
	testkit.Equal(t, "bytes of the fragment", len(b.Receive(0).Header), len(frag.Bytes()))
}

// holdModel sends random frames of several flows in random batches; some end a merge or join none.
//
// Invariant: nic: Cutting a merged GSO packet gives the original frames, byte for byte, with
// complete checksums.
func holdModel(t *testing.T, lab Lab, _ Traits) {
	const seed, rounds, most = 12, 60, 40
	a, b, clock := holding(t, lab, Options{})
	SplitTo(t, b, 1, 2000)
	rnd := rand.New(rand.NewPCG(seed, seed))
	flows := []tcpStream{{source: 1000}, {source: 1001, spec: Spec{V6: true}, whole: true}, {source: 1002, fixedID: true},
		{source: 1003, spec: Spec{VLANs: 1, Opts: 12}}}
	for i := range flows {
		flows[i].a, flows[i].b = a, b
	}
	before, _ := b.Port().QueueCounters(1)
	b.Post(1, most+8)
	packets, sent := 0, 0
	for range rounds {
		var fs []Frame
		for len(fs) < most {
			var batch []Frame
			for range 1 + rnd.IntN(4) {
				batch = append(batch, anyFrame(&flows[rnd.IntN(len(flows))], rnd))
			}
			a.Send(0, batch...)
			fs = append(fs, batch...)
			switch rnd.IntN(30) {
			case 0:
				clock.turn(holdFor / 2)
			case 1:
				b.Port().SetCoalescing(false)
				b.Port().SetCoalescing(true)
			case 2:
				b.Port().FlushRx(1)
			}
		}
		clock.turn(holdFor)
		got := givesAgain(t, b, 1, fs)
		packets, sent = packets+len(got), sent+len(fs)
		for i := range got {
			b.Post(1, got[i].Buffers)
		}
	}
	after, _ := b.Port().QueueCounters(1)
	testkit.Equal(t, "frames counted", after.Packets-before.Packets, uint64(sent))
	testkit.Equal(t, "drops", after.Drops, 0)
	if sent-packets < sent/3 {
		t.Errorf("%d frames came in %d packets: this tests little", sent, packets)
	}
}

func anyFrame(s *tcpStream, rnd *rand.Rand) Frame {
	mss, flags := 1000, uint8(0)
	switch rnd.IntN(40) {
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
	}
	f := s.frame(mss, flags)
	if rnd.IntN(50) == 0 {
		tweak(&f, rnd)
	}
	return f
}

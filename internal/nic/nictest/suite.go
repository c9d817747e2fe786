package nictest

import (
	"bytes"
	"fmt"
	"net/netip"
	"runtime"
	"testing"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/splitter"
)

// Run runs the suite; guest makes guest 0 or 1 of a lab.
func Run(t *testing.T, traits Traits, guest func(testing.TB, *dma.Files, *wire.Switch, int, Options) Guest) {
	lab := func(t testing.TB, o Options) (a, b Guest) {
		testkit.CheckFDs(t)
		if o.Sabotage = sabotaged(t); o.Sabotage != nil {
			o.Wait = faultWait
		}
		files, sw := Switch(t)
		return guest(t, files, sw, 0, o), guest(t, files, sw, 1, o)
	}
	for _, c := range []struct {
		name string
		run  func(*testing.T, Lab, Traits)
	}{
		{"SplitSweep", splitSweep},
		{"UnsplitIsWhole", unsplit},
		{"RuleBeatsRSS", steer},
		{"RSSExcludes", excludes},
		{"ShortageIsWholeFrames", shortage},
		{"NothingOvertakesItsFlow", overtake},
		{"SegmentsForWhoLacksTSO", segments},
		{"SuperPacketIsSplitOnce", super},
		{"BounceCountsAsHost", bounce},
		{"PayloadIsCopiedOnce", once},
		{"Meters", flowCounters},
		{"FlowsAreCounted", flowsCounted},
		{"PostedIsShown", postedShown},
		{"ControlChannel", controlChannel},
		{"ChecksumsChangeNothingJudged", judged},
		{"SplitOffReturnsBuffers", splitOff},
		{"TapSeesPlaces", tap},
		{"TapSeesBounces", tapBounced},
		{"Coalesces", coalesces},
		{"LongestMerge", mergeLong},
		{"NothingIsMergedUnasked", apart},
		{"MergeThatDoesNotFit", mergeShortage},
		{"MergeGivesFramesAgain", mergeModel},
		{"BadChecksumJoinsNoMerge", badSumAlone},
		{"MergesKeepOrder", mergeOrder},
		{"TrailersArrive", trailer},
		{"MergesOutliveBatches", holds},
		{"KernelsMerges", kernelsMerges},
		{"TimeEndsAMerge", holdTime},
		{"OldestOf65Flows", holdFlows},
		{"StopEndsMerges", holdStop},
		{"HeldShortage", holdShortage},
		{"HeldForTooLong", holdLost},
		{"HeldInPieces", holdPieces},
		{"HeldKeepsOrder", holdOrder},
		{"NothingJoinsPastItsFlow", holdWaits},
		{"HeldModel", holdModel},
		{"ExhaustionLosesNothing", exhausted},
		{"CompletionsComeLate", late},
		{"HashPlacesFlows", placed},
		{"FramesComeBack", comeBack},
		{"DriverIsCalled", called},
		{"ChecksumsLeaveComplete", completed},
		{"StoppedQueueIsLeftAlone", leftAlone},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, lab, traits) })
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	testkit.OK(t, err)
}

// SplitTo turns header split of queue q of a guest on, and steers TCP frames for a port to the queue.
func SplitTo(t testing.TB, g Guest, q, port uint16) {
	t.Helper()
	g.SetSplit(int(q), true)
	for _, v6 := range []bool{false, true} {
		_, err := g.Port().AddFlow(control.FlowRule{Proto: 6, IPv6: v6, DstPort: port, Queue: q})
		must(t, err)
	}
}

func arrives(t testing.TB, from, to Guest, q int, f Frame) Frame {
	t.Helper()
	from.Send(0, f)
	return Arrives(t, to, q, &f)
}

// same checks that a received frame equals the sent one. If the NIC has completed a partial checksum,
// the received frame must have the complete one.
func same(t testing.TB, got, want *Frame) {
	t.Helper()
	sent := want.Bytes()
	if want.Partial && got.Good && got.GSO == splitter.GSONone {
		var h splitter.Headers
		must(t, splitter.Parse(sent, uint32(len(sent)), &h))
		splitter.FixL4(&h, sent[:h.HdrLen], uint32(len(want.Payload)), splitter.Sum(want.Payload, 0))
	}
	if !bytes.Equal(got.Bytes(), sent) {
		t.Errorf("got  %d+%d bytes %x\nsent %d+%d bytes %x", len(got.Header), len(got.Payload), got.Header,
			len(want.Header), len(want.Payload), want.Header)
	}
}

// Invariant: nic: If a frame is split, exactly its headers go to the header buffer and its payload
// to other buffers; split or not, its bytes stay as they were sent, but for a checksum that the NIC
// completes.
func splitSweep(t *testing.T, lab Lab, _ Traits) {
	a, b := lab(t, Options{})
	SplitTo(t, b, 1, 2000)
	limit := 256
	specs := map[string]Spec{
		"v4":    {},
		"v4-66": {Opts: 12},
		"v6":    {V6: true},
		"v6-94": {V6: true, Opts: 20}, "v6-114": {V6: true, Opts: 40},
		"limit": {V6: true, Ext: 144, Opts: 36}, // a length of headers is 2 modulo 4, so the longest up to 256 is 254
		"vlan":  {VLANs: 1, Opts: 12}, "qinq": {VLANs: 2, V6: true},
	}
	for name, s := range specs {
		t.Run(name, func(t *testing.T) {
			for _, n := range []int{0, 1, 2, 3, 7, 8, 63, 64, 65, 1447, 1448, 1449, 4095, 4096, 4097, 8191, 8192, 8193} {
				s.Payload = n
				f := Make(b.MAC(), a.MAC(), s)
				if len(f.Header) > limit {
					t.Fatalf("headers of %d bytes", len(f.Header))
				}
				want := max(1, (n+PayloadBuf-1)/PayloadBuf)
				b.Post(1, want)
				got := arrives(t, a, b, 1, f)
				if !got.Split || got.Dirty || len(got.Header) != len(f.Header) || got.Buffers != want {
					t.Errorf("payload %d: split %v, dirty %v, %d header bytes of %d, %d buffers of %d", n, got.Split, got.Dirty,
						len(got.Header), len(f.Header), got.Buffers, want)
				}
			}
		})
	}
	testkit.Equal(t, "frames unsplit", b.Port().Unsplit(), 0)
}

// Invariant: nic: A frame that cannot be split arrives whole, where the device model says.
func unsplit(t *testing.T, lab Lab, traits Traits) {
	a, b := lab(t, Options{})
	SplitTo(t, b, 1, 2000)
	b.Post(1, 4)
	b.Post(0, 4)
	f := Make(b.MAC(), a.MAC(), Spec{V6: true, Ext: 144, Opts: 40, Payload: 100})
	if len(f.Header) != 258 {
		t.Fatal(len(f.Header))
	}
	a.Send(0, f)
	q := 0
	if traits.OwnUnsplit {
		q = 1
	}
	got := Arrives(t, b, q, &f)
	if got.Split || b.Port().Unsplit() != 1 {
		t.Errorf("split %v, %d counted", got.Split, b.Port().Unsplit())
	}
	// On a split queue, a UDP frame goes to the header buffer as a whole.
	_, err := b.Port().AddFlow(control.FlowRule{Proto: 17, DstPort: 2000, Queue: 1})
	must(t, err)
	f = Make(b.MAC(), a.MAC(), Spec{UDP: true, Payload: 40})
	got = arrives(t, a, b, 1, f)
	if !got.Split || len(got.Payload) != 0 {
		t.Errorf("UDP: split %v, payload %d", got.Split, len(got.Payload))
	}
}

// Invariant: nic: A flow rule takes precedence over RSS.
func steer(t *testing.T, lab Lab, _ Traits) {
	a, b := lab(t, Options{})
	rss, err := b.Port().RSS()
	must(t, err)
	rss.Table = []uint16{2}
	must(t, b.Port().SetRSS(rss))
	id, err := b.Port().AddFlow(control.FlowRule{Proto: 6, DstPort: 3000, Queue: 1})
	must(t, err)
	for q := range 3 {
		b.Post(q, 4)
	}
	f := Make(b.MAC(), a.MAC(), Spec{Port: 3000, Payload: 5})
	arrives(t, a, b, 1, f)
	must(t, b.Port().DelFlow(id))
	arrives(t, a, b, 2, f)
}

// Invariant: nic: RSS can leave a queue out.
func excludes(t *testing.T, lab Lab, _ Traits) {
	a, b := lab(t, Options{})
	rss, err := b.Port().RSS()
	must(t, err)
	rss.Table = []uint16{0, 2}
	must(t, b.Port().SetRSS(rss))
	for _, q := range []int{0, 2} {
		b.Post(q, 64)
	}
	var seen [3]uint64
	for i := range 64 {
		a.Send(0, Make(b.MAC(), a.MAC(), Spec{Port: uint16(5000 + i)}))
	}
	for q := range seen {
		rx, _ := b.Port().QueueCounters(q)
		seen[q] = rx.Packets
	}
	if seen[0] == 0 || seen[1] != 0 || seen[2] == 0 || seen[0]+seen[2] != 64 {
		t.Errorf("packets by queue: %v", seen)
	}
}

// busy calls send, and waits until a frame for g has found too few buffers. The test fails if g has received one.
func busy(t testing.TB, g Guest, send func()) {
	t.Helper()
	before := g.Port().Link().Counters().Busy
	send()
	for g.Port().Link().Counters().Busy == before {
		if c, err := g.Port().PortCounters(); err != nil || c.Rx.Packets > 0 {
			t.Fatalf("%d frames arrived, for which there are no buffers: %v", c.Rx.Packets, err)
		}
		runtime.Gosched()
	}
}

// Invariant: nic: A frame is published whole or not at all.
func shortage(t *testing.T, lab Lab, _ Traits) {
	a, b := lab(t, Options{})
	SplitTo(t, b, 1, 2000)
	f := Make(b.MAC(), a.MAC(), Spec{Payload: 8192 + 100})
	b.Post(1, 2)
	busy(t, b, func() { a.Queue(0, f) })
	b.Post(1, 1)
	a.Sent(0)
	got := Arrives(t, b, 1, &f)
	if got.Buffers != 3 || got.Dirty {
		t.Errorf("%d buffers, dirty %v", got.Buffers, got.Dirty)
	}
	c, err := b.Port().PortCounters()
	must(t, err)
	if c.Rx.Packets != 1 || c.Rx.Drops != 0 || c.Rx.DeviceBytes != 8292 || c.Rx.HostBytes != 0 {
		t.Errorf("counters: %+v", c.Rx)
	}
}

// The last frame cannot be split, and may go to queue 0.
//
// Invariant: nic: No packet overtakes its flow.
func overtake(t *testing.T, lab Lab, traits Traits) {
	a, b := lab(t, Options{})
	SplitTo(t, b, 1, 2000)
	b.Post(0, 4)
	first := Make(b.MAC(), a.MAC(), Spec{V6: true, Payload: 10})
	last := Make(b.MAC(), a.MAC(), Spec{V6: true, Ext: 144, Opts: 40, Payload: 10, Seq: 10})
	busy(t, b, func() { a.Queue(0, first, hello(a), last) })
	a.Post(0, 1)
	rx, _ := b.Port().QueueCounters(0)
	if rx.Packets != 0 {
		t.Error("a later frame of the flow was delivered first")
	}
	b.Post(1, 2)
	a.Sent(0)
	Arrives(t, b, 1, &first)
	q := 0
	if traits.OwnUnsplit {
		q = 1
	}
	Arrives(t, b, q, &last)
}

// The receiver accepts neither GSO packets nor, if the model has that choice, partial checksums.
//
// Invariant: nic: A super-packet is split once, and cut for a receiver that accepts none.
func segments(t *testing.T, lab Lab, traits Traits) {
	a, b := lab(t, Options{NoOffload: true})
	f := Make(b.MAC(), a.MAC(), Spec{Payload: 5000, Seq: 0xfffffc00, Flags: splitter.ACK | splitter.PSH})
	f.GSO, f.MSS = splitter.GSOTCPv4, 1448
	b.Post(0, 8)
	a.Send(0, f)
	n := Segments(t, b, 0, &f, func(got *Frame, h *splitter.Headers, off int) {
		if got.Partial || got.Good != traits.Completes {
			t.Errorf("segment at %d: partial %v, good %v", off, got.Partial, got.Good)
		}
		if h.Seq != 0xfffffc00+uint32(off) || (h.TCPFlags&splitter.PSH != 0) != (off == 3*1448) {
			t.Errorf("segment at %d: seq %#x, flags %#x", off, h.Seq, h.TCPFlags)
		}
	})
	testkit.Equal(t, "segments", n, 4)
}

// Segments receives the segments of the GSO packet f on queue q of g, verifies their checksums and bytes, and calls
// check with each and the offset of its payload. It returns their number.
func Segments(t testing.TB, g Guest, q int, f *Frame, check func(got *Frame, h *splitter.Headers, off int)) (n int) {
	t.Helper()
	for off := 0; off < len(f.Payload); n++ {
		got := g.Receive(q)
		b := got.Bytes()
		var h splitter.Headers
		must(t, splitter.Parse(b, uint32(len(b)), &h))
		rest := b[h.HdrLen:]
		csum := splitter.VerifyL4(&h, b[:h.HdrLen], uint32(len(rest)), splitter.Sum(rest, 0))
		if got.GSO != splitter.GSONone || csum != splitter.CsumGood || len(rest) == 0 || len(rest) > int(f.MSS) ||
			!bytes.HasPrefix(f.Payload[off:], rest) {
			t.Fatalf("segment at %d: %d bytes, %v, checksum %v: %x", off, len(rest), got.GSO, csum, b[:h.HdrLen])
		}
		check(&got, &h, off)
		off += len(rest)
	}
	return n
}

// Invariant: nic: A super-packet is split once, and cut for a receiver that accepts none.
func super(t *testing.T, lab Lab, traits Traits) {
	a, b := lab(t, Options{})
	SplitTo(t, b, 1, 2000)
	f := Make(b.MAC(), a.MAC(), Spec{Payload: 40000})
	f.GSO, f.MSS = splitter.GSOTCPv4, 1448
	b.Post(1, 10)
	got := arrives(t, a, b, 1, f)
	partial := got.Partial && got.Start == f.Start && got.Offset == f.Offset
	if got.GSO != f.GSO || got.MSS != f.MSS || partial == traits.Completes || got.Good != traits.Completes || got.Dirty ||
		got.Buffers != 10 {
		t.Errorf("%+v", got)
	}
	rx, _ := b.Port().QueueCounters(1)
	if rx.Packets != 1 || rx.Segments != 28 || rx.HeaderBytes != 54 || rx.DeviceBytes != 40000 {
		t.Errorf("counters: %+v", rx)
	}
}

// Invariant: nic: Payload that is bounced counts as host memory.
func bounce(t *testing.T, lab Lab, _ Traits) {
	a, b := lab(t, Options{NoP2P: true})
	SplitTo(t, b, 1, 2000)
	f := Make(b.MAC(), a.MAC(), Spec{Payload: 5000})
	b.Post(1, 2)
	a.SendGPU(0, f)
	Arrives(t, b, 1, &f)
	_, tx := a.Port().QueueCounters(0)
	rx, _ := b.Port().QueueCounters(1)
	for _, c := range []control.DirCounters{tx, rx} {
		if c.DeviceBytes != 0 || c.GPUFileBytes != 0 || c.HostBytes != 5000 || c.BouncedBytes != 5000 {
			t.Errorf("counters: %+v", c)
		}
	}
}

// Invariant: nic: A flow counter counts only its connection, by kind of memory, and detects
// retransmissions.
func flowCounters(t *testing.T, lab Lab, _ Traits) {
	a, b := lab(t, Options{})
	from, to := netip.AddrFrom4([4]byte{10, 0, 0, a.MAC()[5]}), netip.AddrFrom4([4]byte{10, 0, 0, b.MAC()[5]})
	local, remote := netip.AddrPortFrom(from, 1000), netip.AddrPortFrom(to, 2000)
	ma, err := a.Port().AddFlowCounter(control.FlowCounter{Proto: 6, Local: local, Remote: remote})
	must(t, err)
	mb, err := b.Port().AddFlowCounter(control.FlowCounter{Proto: 6, Local: remote, Remote: local})
	must(t, err)
	SplitTo(t, b, 1, 2000)
	b.Post(1, 8)
	b.Post(0, 8)
	edge := uint32(0xffffff00)
	// The first segment crosses the wrap of sequence numbers, the third comes late, and a part of the last is
	// repeated.
	for _, s := range []Spec{{Seq: edge, Payload: 512}, {Seq: edge + 1024, Payload: 512}, {Seq: edge + 512, Payload: 512},
		{Seq: edge + 1000, Payload: 1000}} {
		a.SendGPU(0, Make(b.MAC(), a.MAC(), s))
	}
	a.Send(0, Make(b.MAC(), a.MAC(), Spec{Port: 2001, Payload: 77})) // another connection
	ca, err := a.Port().ReadFlowCounter(ma)
	must(t, err)
	cb, err := b.Port().ReadFlowCounter(mb)
	must(t, err)
	for _, c := range []control.DirCounters{ca.Tx, cb.Rx} {
		if want := (control.DirCounters{Packets: 4, Segments: 4, HeaderBytes: 4 * 54, DeviceBytes: 2536,
			RetransBytes: 536}); c != want {
			t.Errorf("got  %+v\nwant %+v", c, want)
		}
	}
	if ca.Rx.Packets != 0 || cb.Tx.Packets != 0 {
		t.Errorf("the other direction: %+v %+v", ca.Rx, cb.Tx)
	}
}

func hello(g Guest) Frame {
	f := control.Frame{Dst: wire.ControlMAC, Src: g.MAC()}
	f.Kind, f.Class, f.Command, f.Session, f.Seq = control.KindRequest, control.ClassInfo, control.InfoHello, 7, 1
	return Frame{Header: f.Append(nil)}
}

func linkDrops(guests ...Guest) (n uint64) {
	for _, g := range guests {
		for _, k := range g.Port().Link().Counters().Drops {
			n += k
		}
	}
	return n
}

// Invariant: nic: Commands are answered on receive queue 0; tagged, long and misaddressed ones are
// dropped.
func controlChannel(t *testing.T, lab Lab, _ Traits) {
	a, b := lab(t, Options{})
	a.Post(0, 8)
	ask := hello(a)
	a.Send(0, ask)
	check := func() {
		t.Helper()
		got := a.Receive(0)
		var r control.Frame
		must(t, r.Parse(got.Bytes()))
		if r.Kind != control.KindReply || r.Seq != 1 || r.Errno != 0 || r.Generation != a.Port().Generation() ||
			r.Dst != a.MAC() {
			t.Errorf("reply %+v", r)
		}
	}
	check()
	a.Send(1, ask) // a repeated request, on another queue
	check()
	// Frames that the port does not answer.
	tagged := Frame{Header: append(append(bytes.Clone(ask.Header[:12]), 0x81, 0, 0, 5), ask.Header[12:]...)}
	long := Frame{Header: append(bytes.Clone(ask.Header), make([]byte, control.MaxFrame)...)}
	other := Frame{Header: bytes.Clone(ask.Header)}
	mac := b.MAC()
	copy(other.Header, mac[:])
	for i, f := range []Frame{tagged, long, other} {
		_, before := a.Port().QueueCounters(0)
		reasons := linkDrops(a, b)
		b.Post(0, 1)
		a.Send(0, f)
		testkit.Equal(t, fmt.Sprintf("frame %d: reasons", i), linkDrops(a, b), reasons+1)
		rx, _ := b.Port().QueueCounters(0)
		if _, tx := a.Port().QueueCounters(0); tx.Drops != before.Drops+1 || rx.Packets != 0 {
			t.Errorf("frame %d: drops %d, then %d, received %d", i, before.Drops, tx.Drops, rx.Packets)
		}
	}
	a.Send(0, ask)
	check()
	for i := range 40 {
		_, err := a.Port().AddFlow(control.FlowRule{Proto: 6, DstPort: uint16(100 + i), Queue: 1})
		must(t, err)
	}
	f := control.Frame{Dst: wire.ControlMAC, Src: a.MAC(), Data: make([]byte, 4)}
	f.Kind, f.Class, f.Command, f.Session, f.Seq = control.KindRequest, control.ClassFlow, control.FlowList, 7, 2
	a.Send(0, Frame{Header: f.Append(nil)})
	got := a.Receive(0)
	var r control.Frame
	must(t, r.Parse(got.Bytes()))
	if r.Errno != 0 || len(r.Data) < 1000 || bytes.Count(r.Data[len(r.Data)-200:], []byte{0}) == 200 {
		t.Errorf("errno %d, %d bytes", r.Errno, len(r.Data))
	}
}

// Invariant: wire: Completing a partial checksum changes no byte by which a frame was judged, but
// for the checksum field of TCP or UDP.
func judged(t *testing.T, lab Lab, _ Traits) {
	a, b := lab(t, Options{})
	to, from := b.MAC(), wire.MAC{2, 0x76, 0x6e, 0x69, 0x63, 0x77}
	spoof := Frame{Header: append(append(append([]byte(nil), to[:]...), from[:]...), 0x99, 0xb5), Partial: true, Start: 11}
	spoof.Header = append(spoof.Header, make([]byte, 51)...)
	free := spoof.Header[len(spoof.Header)-2:]
	// With a complete checksum, spoof would be a control frame.
	sum := splitter.Add(^uint16(0x0188), ^splitter.Sum(spoof.Header[11:], 0))
	free[0], free[1] = byte(sum>>8), byte(sum)
	fragment := Make(b.MAC(), a.MAC(), Spec{UDP: true, Payload: 100})
	fragment.Header[20] = 0x20 // more fragments
	fragment.Start, fragment.Offset = 30, 0
	other := Make(b.MAC(), a.MAC(), Spec{UDP: true, Payload: 100})
	other.Header[23] = 132 // SCTP
	other.Start, other.Offset = 26, 4
	arp := Frame{Header: append(append(append([]byte(nil), to[:]...), from[:]...), 8, 6), Payload: make([]byte, 46),
		Partial: true, Start: 28}
	for i, f := range []Frame{spoof, fragment, other, arp} {
		b.Post(0, 2)
		last := Make(b.MAC(), a.MAC(), Spec{Payload: 7})
		a.Send(0, f, last)
		got := b.Receive(0)
		if sent := f.Bytes(); len(got.Bytes()) == len(sent) {
			if !bytes.Equal(got.Bytes(), sent) {
				t.Errorf("frame %d: got  %x\nsent %x", i, got.Bytes(), sent)
			}
			got = b.Receive(0)
		}
		same(t, &got, &last)
	}
}

// Invariant: nic: When header split is switched off by a command, a virtio queue's posted buffers
// are returned.
func splitOff(t *testing.T, lab Lab, traits Traits) {
	a, b := lab(t, Options{})
	SplitTo(t, b, 1, 2000)
	b.Post(1, 3)
	b.SetSplit(1, false)
	if !traits.SplitStops {
		for range 3 {
			if f := b.Receive(1); len(f.Bytes()) != 0 {
				t.Errorf("%d bytes in a buffer that was given back", len(f.Bytes()))
			}
		}
	}
	b.SetSplit(1, true)
	b.Post(1, 1)
	f := Make(b.MAC(), a.MAC(), Spec{Payload: 9})
	got := arrives(t, a, b, 1, f)
	if traits.SplitStops {
		SplitTo(t, b, 0, 3000)
		b.Post(0, 1)
		f = Make(b.MAC(), a.MAC(), Spec{Port: 3000, Payload: 9})
		got = arrives(t, a, b, 0, f)
		if !got.Split {
			t.Error("queue 0 is not split")
		}
	}
	if err := b.Port().SetSplit(control.Split{Queue: 0, On: true}); err == nil {
		t.Error("queue 0 was split by a command")
	}
}

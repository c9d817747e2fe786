package wire

import (
	"bytes"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/splitter"
)

// arrivals returns the numbers of all segments of mss bytes in received frames, in order of arrival; segment 0 has
// sequence number 0.
func arrivals(t testing.TB, got []received, mss int) (seqs []int) {
	t.Helper()
	for i := range got {
		h, b := verify(t, &got[i])
		for off := 0; off < len(b); off += mss {
			seqs = append(seqs, (int(h.Seq)+off)/mss)
		}
	}
	return seqs
}

// over sends packets from one host to another, the i-th of sizes[i] segments. It returns the numbers of the segments
// that have arrived by then, in order of arrival, and the two hosts.
func over(t *testing.T, up, down Impairment, lim Limits, sizes []int) ([]int, *host, *host) {
	t.Helper()
	a, b := badPair(t, newSwitch(t), up, down)
	b.setLimits(lim)
	const mss = 100
	var batch []*Packet
	off := 0
	for _, n := range sizes {
		sp := spec{off: off * mss, n: n * mss, seq: uint32(off * mss), csum: splitter.CsumGood}
		if n > 1 {
			sp.mss = mss
		}
		batch = append(batch, a.packet(b.mac, sp))
		off += n
	}
	for c := range slices.Chunk(batch, 7) {
		a.sendAll(c...)
	}
	got := b.take()
	for i := range got {
		h, p := verify(t, &got[i])
		if !bytes.Equal(p, a.ram[h.Seq:int(h.Seq)+len(p)]) {
			t.Fatalf("frame %d: wrong payload", i)
		}
	}
	return arrivals(t, got, mss), a, b
}

// shapes returns ways to divide 1000 segments into packets: the number of segments of each packet.
func shapes() map[string][]int {
	m := map[string][]int{"one by one": slices.Repeat([]int{1}, 1000), "by tens": slices.Repeat([]int{10}, 100),
		"by 500": {500, 500}}
	var odd []int
	for n, left := 1, 1000; left > 0; n = n%37 + 1 {
		odd = append(odd, min(n, left))
		left -= min(n, left)
	}
	m["mixed"] = odd
	return m
}

var superLimits = Limits{Csum: true, GSO: GSO(splitter.GSOTCPv4)}

// With one seed the same segments arrive in the same order, however the sender packs them, and whether or not the
// receiver accepts GSO packets.
//
// Invariant: wire: With the same impairment, seed and direction, the same segments are lost.
func TestFateOfSegmentsIsTheSeeds(t *testing.T) {
	bad := Impairment{Seed: 42, Loss: 0.05, Reorder: 0.1, ReorderDepth: 5, HoldMax: time.Hour}
	for side, o := range map[string][2]Impairment{"up": {bad, {}}, "down": {{}, bad}} {
		var first []int
		for name, sizes := range shapes() {
			for _, lim := range []Limits{{}, superLimits} {
				seqs, a, b := over(t, o[0], o[1], lim, sizes)
				if first == nil {
					first = seqs
					lost, late := 1000-len(seqs), 0
					for i := 1; i < len(seqs); i++ {
						if seqs[i] < seqs[i-1] {
							late++
						}
					}
					if lost < 20 || lost > 100 || late < 30 {
						t.Errorf("%s: %d lost, %d late", side, lost, late)
					}
				}
				if !slices.Equal(seqs, first) {
					t.Errorf("%s, %s: %d segments came, %d before", side, name, len(seqs), len(first))
				}
				l := a.link
				if side == "down" {
					l = b.link
				}
				if n := l.Counters(); n.Held < 50 || n.Drops[DropLinkLoss] == 0 || n.DelayFull != 0 {
					t.Errorf("%s: %+v", side, n)
				}
			}
		}
	}
}

// The same segments arrive if the receiver runs out of buffers repeatedly.
//
// Invariant: wire: With the same impairment, seed and direction, the same segments are lost.
func TestFateSurvivesBusyPorts(t *testing.T) {
	bad := Impairment{Seed: 7, Loss: 0.1}
	run := func(buffers int) (seqs []int) {
		a, b := badPair(t, newSwitch(t), bad, bad)
		for i := range 10 {
			p := a.packet(b.mac, spec{off: i * 10000, n: 10000, seq: uint32(i * 10000), mss: 100})
			for tries := 0; p.Verdict.Kind != Taken; tries++ {
				if tries > 200 || p.Verdict.Kind == Dropped {
					t.Fatalf("%+v", p.Verdict)
				}
				b.post(buffers)
				a.send(p)
			}
		}
		n, m := a.link.Counters(), b.link.Counters()
		if lost := n.Drops[DropLinkLoss] + m.Drops[DropLinkLoss]; lost+m.Received != 1000 || n.Sent != 10 ||
			n.SentSegments != 1000 {
			t.Errorf("%d lost, %d received, %d sent as %d", lost, m.Received, n.Sent, n.SentSegments)
		}
		return arrivals(t, b.take(), 100)
	}
	want := run(-1)
	for _, n := range []int{1, 3, 64} {
		if got := run(n); !slices.Equal(got, want) {
			t.Errorf("with %d buffers at a time: %d segments, want %d", n, len(got), len(want))
		}
	}
}

func TestSeedsDiffer(t *testing.T) {
	sizes := slices.Repeat([]int{10}, 100)
	one, _, _ := over(t, Impairment{Seed: 1, Loss: 0.1}, Impairment{}, Limits{}, sizes)
	two, _, _ := over(t, Impairment{Seed: 2, Loss: 0.1}, Impairment{}, Limits{}, sizes)
	if slices.Equal(one, two) {
		t.Error("two seeds, one fate")
	}
	both, _, _ := over(t, Impairment{Seed: 1, Loss: 0.1}, Impairment{Seed: 1, Loss: 0.1}, Limits{}, sizes)
	if len(both) > len(one)-30 {
		t.Errorf("%d came over two bad links, %d over one", len(both), len(one))
	}
}

func TestAllLostAndNoneLost(t *testing.T) {
	for _, sizes := range shapes() {
		if seqs, a, _ := over(t, Impairment{Loss: 1}, Impairment{}, Limits{}, sizes); len(seqs) != 0 ||
			a.link.Counters().Drops[DropLinkLoss] != 1000 {
			t.Errorf("%d came", len(seqs))
		}
	}
	a, b := badPair(t, newSwitch(t), Impairment{Loss: 1}, Impairment{})
	p := a.sent(a.packet(b.mac, spec{n: 1000, mss: 100}))
	dropped(t, p, DropLinkLoss)
}

func TestHeldSegmentsAreOvertakenAsToldAndNeverLost(t *testing.T) {
	for _, depth := range []int{1, 4} {
		bad := Impairment{Seed: 3, Reorder: 0.2, ReorderDepth: depth, HoldMax: time.Hour}
		seqs, a, _ := over(t, bad, Impairment{}, superLimits, slices.Repeat([]int{20}, 50))
		for i, seq := range seqs {
			if i-seq > depth {
				t.Fatalf("segment %d came at %d", seq, i)
			}
		}
		if missing := 1000 - len(seqs); missing > depth {
			t.Errorf("%d did not come", missing)
		}
		if n := a.link.Counters(); n.Held < 100 {
			t.Errorf("%+v", n)
		}
	}
}

func TestHeldPayloadIsACopy(t *testing.T) {
	a, b := badPair(t, newSwitch(t), Impairment{Reorder: 1, ReorderDepth: 1, HoldMax: time.Hour}, Impairment{})
	want := bytes.Clone(a.ram[:500])
	p := a.sent(a.packet(b.mac, spec{n: 500, csum: splitter.CsumGood, cut: []int{1, 2}}))
	if p.Verdict.Kind != Taken || len(b.take()) != 0 {
		t.Fatalf("%+v", p.Verdict)
	}
	clear(a.ram[:500])
	a.send(a.packet(b.mac, spec{off: 1000, n: 10}), a.packet(b.mac, spec{off: 1000, n: 10}),
		a.packet(b.mac, spec{off: 1000, n: 10}))
	got := b.take()
	if len(got) == 0 || !got[0].wire || !bytes.Equal(got[0].frame[54:], want) {
		t.Fatalf("%d frames", len(got))
	}
	verify(t, &got[0])
}

func TestHeldSegmentsAreLetGoInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		late := Impairment{Reorder: 1, HoldMax: 5 * time.Millisecond}
		a, b := badPair(t, newSwitch(t), late, late)
		start := time.Now()
		a.send(a.packet(b.mac, spec{n: 500}))
		synctest.Wait()
		if len(b.take()) != 0 {
			t.Fatal("it was not held")
		}
		<-b.arrived
		if d := time.Since(start); d != 10*time.Millisecond || len(b.take()) != 1 {
			t.Errorf("it came after %v", d)
		}
		// No other frame follows the held one, and the receiver is busy for a while.
		b.post(0)
		a.send(a.packet(b.mac, spec{n: 500}))
		for range 3 {
			<-b.arrived
		}
		b.post(1)
		<-b.arrived
		if len(b.take()) != 1 || b.link.Counters().Drops[DropDelay] != 0 {
			t.Error("it did not come")
		}
		b.post(0)
		a.send(a.packet(b.mac, spec{n: 500}))
		for range maxTries {
			<-b.arrived
		}
		time.Sleep(time.Second)
		testkit.Equal(t, "segments given up", b.link.Counters().Drops[DropDelay], 1)
		b.post(-1)
	})
}

func TestDelayLineIsBounded(t *testing.T) {
	for name, bad := range map[string]Impairment{
		"packets": {Reorder: 1, ReorderDepth: 1000, HoldMax: time.Hour, MaxPackets: 10},
		"bytes":   {Reorder: 1, ReorderDepth: 1000, HoldMax: time.Hour, MaxBytes: 10 * minBuf},
	} {
		a, b := badPair(t, newSwitch(t), bad, Impairment{})
		for range 50 {
			a.send(a.packet(b.mac, spec{n: 500}))
		}
		testkit.OK(t, a.link.sw.Detach(a.link))
		n := a.link.Counters()
		if n.DelayFull == 0 || n.Held+n.DelayFull != 50 || n.Drops[DropDelay]+uint64(len(b.take())) != 50 {
			t.Errorf("%s: %+v", name, n)
		}
		if n.Drops[DropDelay] > 10 {
			t.Errorf("%s: %d were held at once", name, n.Drops[DropDelay])
		}
	}
}

func TestFloodOverBadLinks(t *testing.T) {
	s := newSwitch(t)
	a := newHost(t, s, 1, LinkOptions{})
	lossy := newHost(t, s, 2, LinkOptions{Down: Impairment{Loss: 1}})
	good := newHost(t, s, 3, LinkOptions{})
	half := newHost(t, s, 4, LinkOptions{Down: Impairment{Seed: 1, Loss: 0.5}})
	good.setLimits(superLimits)
	half.post(2)
	p := a.sent(a.packet(broadcast, spec{n: 10000, mss: 100}))
	if p.Verdict.Kind != Taken || len(lossy.take()) != 0 {
		t.Errorf("%+v", p.Verdict)
	}
	if got := good.take(); len(got) != 1 || len(stream(t, got, a.ram[:10000], 0)) != 1 {
		t.Errorf("%d frames", len(got))
	}
	if n := len(half.take()); n != 2 || half.link.Counters().Drops[DropNoBuffer] != 1 {
		t.Errorf("%d frames: %+v", n, half.link.Counters())
	}
	half.post(-1)
	a.send(p)
	if n := len(half.take()); n < 20 || n > 80 {
		t.Errorf("%d of 100 segments at one half", n)
	}
}

// Invariant: wire: Every segment that a link took is received, or counted as lost or as dropped
// while delayed.
func TestNothingGoesAstray(t *testing.T) {
	bad := Impairment{Seed: 5, Loss: 0.05, Reorder: 0.2, HoldMax: 50 * time.Microsecond}
	s := newSwitch(t)
	c, d := newHost(t, s, 3, LinkOptions{}), newHost(t, s, 4, LinkOptions{})
	meet(c, d)
	for range 10 {
		a, b := badPair(t, s, bad, bad)
		var wg sync.WaitGroup
		started := make(chan struct{}, 4)
		for i := range 4 {
			var batch []*Packet
			for range 5 {
				batch = append(batch, a.packet(b.mac, spec{n: 2000, mss: 100, sport: uint16(i)}),
					a.packet(b.mac, spec{n: 10, udp: true}))
			}
			wg.Go(func() {
				w := NewWorker()
				for n := 0; ; n++ {
					for _, p := range batch {
						p.Prepare()
					}
					tok := a.space.Enter()
					a.link.Deliver(w, batch)
					a.space.Leave(tok)
					if n == 3 {
						started <- struct{}{}
					}
					if batch[0].Verdict == Drop(DropStopped) {
						return
					}
				}
			})
		}
		for range 4 {
			<-started
		}
		testkit.OK(t, s.Detach(a.link))
		wg.Wait()
		sent := a.link.Counters()
		if sent.Held == 0 || sent.Drops[DropLinkLoss] == 0 {
			t.Errorf("%+v", sent)
		}
		testkit.OK(t, s.Detach(b.link))
		n := b.link.Counters()
		if want, got := sent.SentSegments-sent.Drops[DropLinkLoss]-sent.Drops[DropDelay],
			n.ReceivedSegments+n.Drops[DropLinkLoss]+n.Drops[DropDelay]; got != want {
			t.Errorf("%d segments came down of %d", got, want)
		}
	}
	p := c.sent(c.packet(d.mac, spec{n: 10}))
	taken(t, p)
}

// The sender's link may also lose a frame whose checksum it would have to complete (unplaced).
func TestUnplacedChecksumIsNoWayRoundLoss(t *testing.T) {
	a, b := badPair(t, newSwitch(t), Impairment{Loss: 1}, Impairment{})
	p := a.packet(b.mac, spec{n: 1448})
	p.Header[12], p.Header[13] = 0x88, 0x47 // MPLS
	testkit.OK(t, splitter.Parse(p.Header, p.Len(), &p.Meta.Headers))
	partial(p, 34, 40)
	a.send(p)
	dropped(t, p, DropLinkLoss)
	testkit.Equal(t, "frames", len(b.take()), 0)
	testkit.Equal(t, "lost", a.link.Counters().Drops[DropLinkLoss], 1)
}

package wire

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/splitter"
)

// Bursts have about the length and the frequency of the model, and do not depend on how packets bundle segments.
func TestBurstsAreTheModels(t *testing.T) {
	bad := Impairment{Seed: 3, Burst: Burst{P: 0.01, R: 0.25}}
	var first []int
	for name, sizes := range shapes() {
		seqs, _, _ := over(t, bad, Impairment{}, Limits{}, sizes)
		if first == nil {
			first = seqs
		}
		if !slices.Equal(seqs, first) {
			t.Errorf("%s: %d segments came, %d before", name, len(seqs), len(first))
		}
	}
	c := newChances(bad, levelUp, 0, nil)
	const n = 1_000_000
	lostAll, bursts, before := 0, 0, false
	for i := range uint64(n) {
		f, _ := c.fate(i)
		if f == lost {
			lostAll++
			if !before {
				bursts++
			}
		}
		before = f == lost
	}
	// A state lasts 1/p segments on average: 100 good ones, and 4 bad ones.
	if mean := float64(lostAll) / float64(bursts); mean < 3.8 || mean > 4.2 || lostAll < n*3/104 || lostAll > n*5/104 {
		t.Errorf("%d lost in %d bursts", lostAll, bursts)
	}
	// c still returns the fates of the latest 500 segments.
	again := make([]bool, 500)
	for i := range again {
		f, _ := c.fate(uint64(n - 500 + i))
		again[i] = f == lost
	}
	d := newChances(bad, levelUp, 0, nil)
	for i := range uint64(n) {
		if f, _ := d.fate(i); i >= n-500 && (f == lost) != again[i-(n-500)] {
			t.Fatalf("segment %d: another fate", i)
		}
	}
}

func TestBurstsAtTheirEnds(t *testing.T) {
	for _, c := range []struct {
		b           Burst
		least, most int
	}{{Burst{P: 1, R: 0}, 999, 1000}, {Burst{P: 1, R: 1}, 499, 501}, {Burst{P: 0, Good: 0.5}, 400, 600},
		{Burst{P: 1, R: 0, Bad: 0.1}, 60, 140}} {
		ch, n := newChances(Impairment{Seed: 5, Burst: c.b}, levelUp, 0, nil), 0
		for i := range uint64(1000) {
			if f, _ := ch.fate(i); f == lost {
				n++
			}
		}
		if n < c.least || n > c.most {
			t.Errorf("%+v: %d lost", c.b, n)
		}
	}
}

func TestDuplicatesComeTwice(t *testing.T) {
	seqs, a, _ := over(t, Impairment{Seed: 1, Duplicate: 0.2}, Impairment{}, Limits{}, shapes()["mixed"])
	slices.Sort(seqs)
	n := len(seqs) - len(slices.Compact(slices.Clone(seqs)))
	if all := len(slices.Compact(seqs)); all != 1000 || n < 120 || n > 280 {
		t.Errorf("%d of 1000 segments, %d of them twice", all, n)
	}
	testkit.Equal(t, "counted", a.link.Counters().Duplicated, uint64(n))
}

// A corrupted segment has a wrong TCP or UDP checksum, and a correct IPv4 header checksum.
func TestCorruptSegmentsDoNotVerify(t *testing.T) {
	for _, side := range []string{"up", "down"} {
		up, down := Impairment{Seed: 9, Corrupt: 0.3}, Impairment{}
		if side == "down" {
			up, down = down, up
		}
		a, b := badPair(t, newSwitch(t), up, down)
		b.setLimits(superLimits)
		ram := slices.Clone(a.ram)
		const packets = 100
		for i := range packets {
			s := spec{off: i * 700, n: 700, seq: uint32(i * 700), mss: 100, csum: splitter.CsumPartial, udp: i%5 == 4}
			if s.udp {
				s.mss, s.csum = 0, splitter.CsumGood
			}
			taken(t, a.sent(a.packet(b.mac, s)))
		}
		corrupted := uint64(0)
		for _, r := range b.take() {
			hdr, payload := r.frame[:r.meta.Headers.HdrLen], r.frame[r.meta.Headers.HdrLen:]
			bad := r.meta.Csum == splitter.CsumNone
			if bad {
				corrupted++
				c := splitter.VerifyL4(&r.meta.Headers, hdr, uint32(len(payload)), splitter.Sum(payload, 0))
				if c != splitter.CsumBad {
					t.Errorf("%s: a changed segment verifies: %v", side, c)
				}
				if !splitter.VerifyIPv4(&r.meta.Headers, hdr) {
					t.Errorf("%s: the IP header has changed", side)
				}
			} else {
				verify(t, &r)
			}
		}
		if n := a.link.Counters().Corrupted + b.link.Counters().Corrupted; n != corrupted || n < 100 {
			t.Errorf("%s: %d counted, %d seen", side, n, corrupted)
		}
		if !slices.Equal(ram, a.ram) {
			t.Errorf("%s: the sender's memory has changed", side)
		}
	}
}

func TestMarksOfCongestion(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, capable := range []bool{false, true} {
			a, b := badPair(t, newSwitch(t), Impairment{Loss: 1, ECN: true}, Impairment{})
			b.setLimits(superLimits)
			p := a.packet(b.mac, spec{n: 5000, mss: 1000, v6: v6, csum: splitter.CsumPartial})
			ip := p.Header[p.Meta.Headers.L3Off:]
			if capable && v6 {
				ip[1] |= 2 << 4
			} else if capable {
				ip[1] |= 2
				splitter.FixIPv4(&p.Meta.Headers, p.Header)
			}
			before := slices.Clone(p.Header)
			if a.sent(p); !capable {
				dropped(t, p, DropLinkLoss)
				continue
			}
			taken(t, p)
			testkit.Equal(t, "the sender's header", string(p.Header), string(before))
			frames := b.take()
			for i := range frames {
				verify(t, &frames[i])
				ip := frames[i].frame[p.Meta.Headers.L3Off:]
				mark := ip[1] & 3
				if v6 {
					mark = ip[1] >> 4 & 3
				}
				if mark != 3 {
					t.Errorf("IPv6 %t: mark %d", v6, mark)
				}
			}
			if n := a.link.Counters().Marked + b.link.Counters().Marked; n != uint64(len(frames)) || n == 0 {
				t.Errorf("%d marked, %d frames", n, len(frames))
			}
		}
	}
}

// The link loses the segments with the numbers in Drop when they are first sent, but not when they are sent again.
func TestDropsByNumber(t *testing.T) {
	for name, sizes := range shapes() {
		a, b := badPair(t, newSwitch(t), Impairment{Drop: []uint32{0, 7, 8, 500, 5000}}, Impairment{})
		b.setLimits(superLimits)
		const mss, start = 100, 1_000_000
		for range 2 { // the second connection has the same TCP ports
			taken(t, a.sent(a.packet(b.mac, spec{flags: splitter.SYN, seq: start - 1})))
			b.take()
			send := func() (seqs []int) {
				off := 0
				for _, n := range sizes {
					s := spec{off: off * mss, n: n * mss, seq: uint32(start + off*mss), csum: splitter.CsumGood}
					if n > 1 {
						s.mss = mss
					}
					a.sent(a.packet(b.mac, s))
					off += n
				}
				for _, x := range arrivals(t, b.take(), mss) {
					seqs = append(seqs, x-start/mss)
				}
				return seqs
			}
			first := send()
			for i := range 1000 {
				if slices.Contains(first, i) == slices.Contains([]int{0, 7, 8, 500}, i) {
					t.Errorf("%s: segment %d of %d that came", name, i, len(first))
				}
			}
			if n := len(send()); n != 1000 {
				t.Errorf("%s: %d came the second time", name, n)
			}
			taken(t, a.sent(a.packet(b.mac, spec{flags: splitter.SYN, seq: 5})))
			b.take()
		}
		if n := a.link.Counters().Drops[DropLinkLoss]; n != 8 {
			t.Errorf("%s: %d lost", name, n)
		}
	}
}

func TestDelay(t *testing.T) {
	for _, side := range []string{"up", "down"} {
		synctest.Test(t, func(t *testing.T) {
			late := Impairment{Delay: 30 * time.Millisecond, Jitter: 10 * time.Millisecond}
			up, down := late, Impairment{}
			if side == "down" {
				up, down = down, up
			}
			a, b := badPair(t, newSwitch(t), up, down)
			b.setLimits(superLimits)
			start := time.Now()
			const packets = 50
			for i := range packets {
				taken(t, a.sent(a.packet(b.mac, spec{off: i * 1000, n: 1000, seq: uint32(i * 1000), mss: 100,
					csum: splitter.CsumPartial})))
			}
			testkit.OK(t, errors.Join(a.link.Impair(Impairment{}, Impairment{}), b.link.Impair(Impairment{}, Impairment{})))
			taken(t, a.sent(a.packet(b.mac, spec{off: packets * 1000, n: 1000, seq: packets * 1000})))
			synctest.Wait()
			if n := len(b.take()); n != 0 {
				t.Fatalf("%d came at once", n)
			}
			time.Sleep(19 * time.Millisecond)
			synctest.Wait()
			if n := len(b.take()); n != 0 {
				t.Fatalf("%d came after %v", n, time.Since(start))
			}
			time.Sleep(25 * time.Millisecond)
			synctest.Wait()
			got := b.take()
			for i := range got {
				if h, p := verify(t, &got[i]); int(h.Seq) != i*1000 || len(p) != 1000 {
					t.Errorf("%s: packet %d has number %d, %d bytes", side, i, h.Seq, len(p))
				}
			}
			testkit.Equal(t, side+": packets", len(got), packets+1)
		})
	}
}

func TestQueueOfALink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := badPair(t, newSwitch(t), Impairment{Rate: 1e6, Limit: 10_000}, Impairment{})
		start := time.Now()
		for i := range 30 {
			a.sent(a.packet(b.mac, spec{n: 1000 - 54 - 24, seq: uint32(i)})) // 1000 bytes on the wire, a millisecond each
		}
		testkit.Equal(t, "lost", a.link.Counters().Drops[DropLinkQueue], 20)
		time.Sleep(9500 * time.Microsecond)
		synctest.Wait()
		testkit.Equal(t, "there by then", len(b.take()), 9)
		time.Sleep(10*time.Millisecond - time.Since(start))
		synctest.Wait()
		testkit.Equal(t, "there in the end", len(b.take()), 1)
		marks := Impairment{Rate: 1e6, Limit: 10_000, ECN: true}
		testkit.OK(t, a.link.Impair(marks, Impairment{}))
		for i := range 10 {
			p := a.packet(b.mac, spec{n: 1000 - 54 - 24, seq: uint32(i)})
			p.Header[p.Meta.Headers.L3Off+1] |= 1
			splitter.FixIPv4(&p.Meta.Headers, p.Header)
			taken(t, a.sent(p))
		}
		time.Sleep(time.Second)
		synctest.Wait()
		testkit.Equal(t, "came", len(b.take()), 10)
		testkit.Equal(t, "marked", b.link.Counters().Marked, 4)
	})
}

// A packet for which a delay line has no room is Busy, with a time for the next try.
func TestDelayedPacketsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := badPair(t, newSwitch(t), Impairment{Delay: time.Second}, Impairment{})
		n := 0
		var p *Packet
		for ; ; n++ {
			if p = a.sent(a.packet(b.mac, spec{n: 50, seq: uint32(n)})); p.Verdict.Kind != Taken {
				break
			}
		}
		if n != maxQueued || p.Verdict.Kind != Busy || p.Verdict.Until == 0 || p.Verdict.Queue != nil {
			t.Fatalf("after %d packets %+v", n, p.Verdict)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		testkit.Equal(t, "came", len(b.take()), n)
		taken(t, a.sent(p))
	})
}

func TestBuffersOfLatePacketsAreBounded(t *testing.T) {
	for name, n := range map[string]int{"small": 1000, "large": 60000} {
		synctest.Test(t, func(t *testing.T) {
			a, b := badPair(t, newSwitch(t), Impairment{Delay: time.Second}, Impairment{})
			b.setLimits(superLimits)
			sent := 0
			for ; sent < maxQueued; sent++ {
				if a.sent(a.packet(b.mac, spec{n: n, mss: 1448, csum: splitter.CsumPartial})).Verdict.Kind != Taken {
					break
				}
			}
			line := a.link.up.Load().line
			line.mu.Lock()
			under := line.queueBytes
			line.mu.Unlock()
			if under <= 2*keepBytes {
				t.Fatalf("%s: only %d bytes are under way", name, under)
			}
			time.Sleep(2 * time.Second)
			synctest.Wait()
			testkit.Equal(t, name+": came", len(b.take()), sent)
			all := 0
			for _, f := range []*pool{&line.small, &line.large} {
				sum := 0
				for _, h := range f.list {
					sum += len(h.buf)
				}
				testkit.Equal(t, name+": bytes in a pool", f.bytes, sum)
				all += sum
			}
			if all > keepBytes || all < keepBytes/2 {
				t.Errorf("%s: %d bytes are kept, of %d at most", name, all, keepBytes)
			}
			if line.queueBytes != 0 || line.queueCount != 0 {
				t.Errorf("%s: %d packets of %d bytes are left", name, line.queueCount, line.queueBytes)
			}
		})
	}
}

func TestLinkChanges(t *testing.T) {
	a, b := badPair(t, newSwitch(t), Impairment{}, Impairment{})
	for range 2 {
		testkit.OK(t, a.link.Impair(Impairment{Loss: 1}, Impairment{}))
		dropped(t, a.sent(a.packet(b.mac, spec{n: 50})), DropLinkLoss)
		testkit.OK(t, a.link.Impair(Impairment{}, Impairment{}))
		taken(t, a.sent(a.packet(b.mac, spec{n: 50})))
	}
}

// When an impairment changes, the Burst and the Drop in it keep their state if they are the same as before.
func TestChangesKeepWhatTheyDoNotChange(t *testing.T) {
	im := Impairment{Seed: 3, Burst: Burst{P: 1, R: 1}, Drop: []uint32{7}}
	const long = 1 << 62
	first := newChances(im, levelUp, long, nil)
	if first.burst.bad(long) {
		t.Error("a burst does not begin in the good state")
	}
	if n := len(first.burst.changes); n > 2 {
		t.Errorf("%d states until the first segment", n)
	}
	im.Loss = 0.5
	if second := newChances(im, levelUp, long+10, first); second.burst != first.burst || second.drop != first.drop {
		t.Error("another loss has bursts and drops begin anew")
	}
	im.Burst.R, im.Drop = 0.5, nil
	if third := newChances(im, levelUp, long+10, first); third.burst == first.burst || third.burst.from != long+10 ||
		third.drop != nil {
		t.Error("what was changed goes on")
	}
}

func TestWrongImpairments(t *testing.T) {
	a, _ := badPair(t, newSwitch(t), Impairment{}, Impairment{})
	for _, im := range []Impairment{{Loss: 2}, {Corrupt: -1}, {Burst: Burst{P: 1.5}}, {Delay: -1}, {Delay: 2 * time.Hour},
		{Rate: 1e6}, {Rate: -1, Limit: 1}, {Limit: MaxLimit + 1}, {Drop: []uint32{2, 1}}, {Drop: make([]uint32, MaxDrop+1)}} {
		if err := a.link.Impair(im, Impairment{}); !errors.Is(err, ErrBadImpairment) {
			t.Errorf("%+v: %v", im, err)
		}
	}
	testkit.OK(t, a.link.sw.Detach(a.link))
	if err := a.link.Impair(Impairment{Loss: 1}, Impairment{}); !errors.Is(err, ErrDetached) {
		t.Errorf("%v", err)
	}
}

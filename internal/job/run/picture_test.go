package run

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"vnic.dev/vnic/internal/report/plot"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/transfer"
)

// area checks a line's intervals, and returns the area below the line and the lost packets.
func area(t *testing.T, s *plot.Series) (moved float64, lost uint64) {
	for i, v := range s.Intervals {
		if v.From < 0 || v.To < v.From || v.Value < 0 || i > 0 && v.From < s.Intervals[i-1].To {
			t.Errorf("%s: interval %d: %+v", s.Name, i, v)
		}
		moved += v.Value * (v.To - v.From)
		lost += v.Lost
	}
	return moved, lost
}

// The area below each line is the payload that the receiver's NIC counted, without the probe.
//
// Invariant: vnic run: A picture's lines sum up to what the NICs counted.
func TestPictureIsWhatWasCounted(t *testing.T) {
	testkit.Slow(t)
	testkit.LeavesNothing(t)
	for _, c := range []struct {
		name   string
		o      func(t *testing.T) Options
		unit   string
		series []string
		lossy  bool
		bars   int
	}{
		{"one transfer in rounds", func(*testing.T) Options {
			o := Defaults()
			o.InProc, o.Size, o.Seed, o.GPUMemory = true, 40<<20, 7, 32<<20
			return o
		}, "MB/s", []string{"A → B"}, false, 0},
		{"rails that lose", func(t *testing.T) Options {
			o := railsOptions(t, 2, "")
			o.Bidir, o.Loss, o.Size = true, 0.01, 4<<20
			return o
		}, "MB/s", []string{"a.nic0 → b.nic0", "b.nic0 → a.nic0", "a.nic1 → b.nic1", "b.nic1 → a.nic1"}, true, 1},
		{"one direction that loses", func(t *testing.T) Options {
			o := railsOptions(t, 1, "")
			o.Loss, o.Size = 0.01, 4<<20
			return o
		}, "MB/s", []string{"a.nic0 → b.nic0"}, true, 1},
		{"links with rates", func(t *testing.T) Options {
			o := railsOptions(t, 2, "a3-high")
			o.Scale = "2000"
			return o
		}, "Gbit/s", []string{"a.nic0 → b.nic0", "a.nic1 → b.nic1"}, false, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := c.o(t)
			o.Recorder = &Recorder{Name: "lab"}
			o.Stage = func(s Step) {
				if s.Stage == "verify" && s.Round == 1 {
					o.Recorder.Mark("verify " + s.Mode)
				}
			}
			o.Recorder.Mark("nothing goes on yet")
			testkit.OK(t, o.Check())
			rep := testkit.Must(Do(t.Context(), o))(t)
			p := o.Recorder.Picture(rep)
			testkit.Equal(t, "panels", len(p.Panels), 2)
			if !strings.HasPrefix(p.Title, "lab: ") || !strings.Contains(p.Title, "devmem and copy") {
				t.Error(p.Title)
			}
			for i := range p.Panels {
				panel, run := &p.Panels[i], &rep.Runs[i]
				testkit.Equal(t, "unit", panel.Unit, c.unit)
				testkit.Equal(t, "series", len(panel.Series), len(c.series))
				testkit.Equal(t, "marks", len(panel.Marks), 1)
				testkit.Equal(t, "mark", panel.Marks[0].Text, "verify "+run.Mode)
				all := uint64(0)
				for j := range panel.Series {
					s, r := &panel.Series[j], run
					if len(rep.Rails) > 0 {
						r = &rep.Rails[i*len(c.series)+j].Run
					}
					testkit.Equal(t, "name", s.Name, c.series[j])
					moved, lost := area(t, s)
					all += lost
					want := rep.rate(float64(r.RX.Device + r.RX.Host))
					if math.Abs(moved-want) > 1e-6*want || s.Mean != rep.rate(r.Rate()) {
						t.Errorf("%s: %g below the line, %g counted; mean %g", s.Name, moved, want, s.Mean)
					}
				}
				if (all > 0) != c.lossy || all > run.DroppedPackets {
					t.Errorf("%d packets lost, of %d", all, run.DroppedPackets)
				}
				if (panel.Limit != nil) != rep.scaled() || rep.scaled() && panel.Limit.At != 200 {
					t.Errorf("limit %+v", panel.Limit)
				}
			}
			if c.bars == 0 {
				testkit.Equal(t, "bars", p.Bars, nil)
				return
			}
			testkit.Equal(t, "columns", len(p.Bars.Columns), c.bars)
			testkit.Equal(t, "groups", strings.Join(p.Bars.Groups, " "), "devmem copy")
		})
	}
}

// Of many readings some are dropped; the sum of bytes and the bounds of rounds stay.
func TestManyReadingsBecomeFewer(t *testing.T) {
	var f flow
	begin := time.Now()
	const rounds, each = 3, 2 * maxSamples
	for i := range uint64(rounds * each) {
		f.add(reading{when: begin.Add(time.Duration(i) * time.Millisecond), bytes: i, lost: i / 2, first: i%each == 0})
		if len(f.list) >= maxSamples {
			t.Fatal(len(f.list), " readings")
		}
	}
	m := &recorded{begin: begin, flows: []*flow{&f}}
	list := f.intervals(m, time.Second, 1)
	moved, lost := area(t, &plot.Series{Intervals: list})
	// Bytes between two rounds' readings are in no interval.
	testkit.Equal(t, "moved", math.Round(moved), rounds*(each-1))
	gaps := 0
	for i := range list {
		if i > 0 && list[i].From > list[i-1].To {
			gaps++
		}
	}
	testkit.Equal(t, "gaps", gaps, rounds-1)
	if lost < rounds*(each-1)/2-rounds || len(list) > rounds*each/1000+rounds {
		t.Errorf("%d lost, %d intervals", lost, len(list))
	}
}

// A short rest of a round joins the round's interval before it, if there is one.
func TestLastIntervalIsNoSpike(t *testing.T) {
	begin := time.Now()
	point := func(ms, bytes int, first bool) reading {
		return reading{when: begin.Add(time.Duration(ms) * time.Millisecond), bytes: uint64(bytes), first: first}
	}
	f := flow{list: []reading{point(0, 0, true), point(50, 50, false), point(100, 100, false), point(101, 200, false),
		point(500, 200, true), point(502, 202, false), point(600, 202, true), point(700, 302, false), point(770, 372, false)}}
	var b strings.Builder
	for _, v := range f.intervals(&recorded{begin: begin}, 100*time.Millisecond, 1e-3) {
		fmt.Fprintf(&b, "%.3f-%.3f %.2f\n", v.From, v.To, v.Value)
	}
	testkit.Equal(t, "intervals", b.String(), "0.000-0.101 1.98\n0.500-0.502 1.00\n0.600-0.700 1.00\n0.700-0.770 1.00\n")
}

// Links of the same kind and rate with nearly equal bars share a row.
func TestBarsOfLinksThatAreAlike(t *testing.T) {
	run := func(mode string, links ...Link) Run { return Run{Mode: mode, Seconds: 2, Links: links} }
	rep := &Report{Runs: []Run{
		run("devmem", Link{Name: "b.nic1 out", Rate: 100, Bytes: 1000, Load: 1.001}, Link{Name: "a.nic0 out", Rate: 100,
			Bytes: 1001, Load: 1}, Link{Name: "a.nic2 out", Rate: 50, Bytes: 1000, Load: 1}, Link{Name: "a.free", Bytes: 3}),
		run("copy", Link{Name: "b.nic1 out", Rate: 100, Bytes: 1000, Load: 0.5}, Link{Name: "a.nic0 out", Rate: 100,
			Bytes: 1000, Load: 0.5}, Link{Name: "a.memory", Rate: 100, Bytes: 2000, Load: 2})}}
	b := rep.bars()
	testkit.Equal(t, "names", strings.Join(b.Names, ", "), "a.memory, a.nic0 out and 1 alike, a.nic2 out, a.free")
	testkit.Equal(t, "model", fmt.Sprint(b.Columns[0].Values), "[[-1 1 1 -1] [2 0.5 -1 -1]]")
	testkit.Equal(t, "carried", fmt.Sprint(b.Columns[1].Values), "[[-1 1001 1000 3] [2000 1000 -1 -1]]")
	rep.Scale, rep.Rails = 10, []Rail{{}}
	b = rep.bars()
	testkit.Equal(t, "measured", fmt.Sprint(b.Columns[1].Values[1]), "[100 -1 50 -1]") // a.nic2 out is before a.nic0 out

	for i := range 40 {
		rep.Runs[0].Links = append(rep.Runs[0].Links, Link{Name: fmt.Sprintf("a.sw%d up", i), Rate: 100,
			Load: float64(i) / 10, Bytes: uint64(i)})
	}
	b = rep.bars()
	testkit.Equal(t, "rows", len(b.Names), mostBars)
	testkit.Equal(t, "first", b.Names[0], "a.sw39 up")
	for _, v := range []struct {
		share float64
		want  string
	}{{0, "0 %"}, {0.001, "< 1 %"}, {0.985, "98 %"}, {3.1, "310 %"}} {
		testkit.Equal(t, "percent", percentOf(v.share), v.want)
	}
}

func TestPictureSaysWhatTheRunWas(t *testing.T) {
	rep := &Report{Guest: "qemu", QEMU: "11.1", Accel: "kvm", NIC: "gve", MTU: 1500, Loss: 0.01, Reorder: 0.001, Seed: 7,
		Scale: 2000, Rails: []Rail{{Run: Run{Mode: transfer.Copy, Bytes: 1 << 20}}},
		Runs: []Run{{Mode: transfer.Copy, Bytes: 1 << 20, Seconds: 1, Rounds: 2}}}
	p := (&Recorder{}).Picture(rep)
	testkit.Equal(t, "title", p.Title, "vnic run: 1 rail, copy, links at 1/2,000 of their rates")
	testkit.Equal(t, "subtitle", p.Subtitle, "1M per rail  ·  NIC gve  ·  MTU 1500  ·  guests in QEMU 11.1 (kvm)"+
		"  ·  loss 1 %  ·  reordered 0.1 %  ·  p2p off  ·  seed 7")
	testkit.Equal(t, "panel", p.Panels[0].Title, "copy: 17 Gbit/s in all, 1.00 s in 2 rounds")
	testkit.Equal(t, "lines without readings", len(p.Panels[0].Series[0].Intervals), 0)
}

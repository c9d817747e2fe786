package run

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/transfer"
)

// payload returns the bytes of payload that each link (and memory) carried in a run's last mode, except for Ethernet's
// links and links without payload.
func (rep *Report) payload() map[string]uint64 {
	m := make(map[string]uint64)
	for _, l := range rep.Runs[len(rep.Runs)-1].Links {
		if l.Payload > 0 && !strings.HasSuffix(l.Name, " in") && !strings.HasSuffix(l.Name, " out") {
			m[l.Name] = l.Payload
		}
	}
	return m
}

// Each byte of payload is counted once for each time that it crosses a link or a memory, and on no other link. The test
// does not look at Ethernet's links.
func TestLinksCarryPayload(t *testing.T) {
	testkit.LeavesNothing(t)
	const both, devmem, copy = "both", transfer.Devmem, transfer.Copy
	for _, c := range []struct {
		name, file, mode string
		want             func(n, tx, rx uint64) map[string]uint64 // by link; n: the payload; tx, rx: what the NICs counted
	}{
		{"below a switch", "a3-high", devmem, func(n, tx, rx uint64) map[string]uint64 {
			return map[string]uint64{"a.gpu0 up": tx, "a.nic0 down": tx, "b.nic0 up": rx, "b.gpu0 down": rx}
		}},
		// the sender's engine writes to memory and its NIC reads; the receiver's NIC writes and its engine reads
		{"through memory", "a3-high", copy, func(n, tx, rx uint64) map[string]uint64 {
			return map[string]uint64{"a.gpu0 up": n, "a.sw0 up": n, "a.s0 memory": n + tx, "a.sw0 down": tx, "a.nic0 down": tx,
				"b.nic0 up": rx, "b.sw0 up": rx, "b.s0 memory": n + rx, "b.sw0 down": n, "b.gpu0 down": n}
		}},
		{"bounced", "flat", devmem, func(n, tx, rx uint64) map[string]uint64 {
			return map[string]uint64{"a.gpu0 up": tx, "a.s0 memory": 2 * tx, "a.nic0 down": tx,
				"b.nic0 up": rx, "b.s0 memory": 2 * rx, "b.gpu0 down": rx}
		}},
		{"redirected", "testdata/redirected.yaml", devmem, func(n, tx, rx uint64) map[string]uint64 {
			return map[string]uint64{"a.gpu0 up": tx, "a.sw0 up": tx, "a.sw0 down": tx, "a.nic0 down": tx,
				"b.nic0 up": rx, "b.sw0 up": rx, "b.sw0 down": rx, "b.gpu0 down": rx}
		}},
		// The GPU is below another switch than the NIC.
		{"crossed", file(t, crossed, ""), devmem, func(n, tx, rx uint64) map[string]uint64 {
			return map[string]uint64{"a.gpu1 up": tx, "a.sw1 up": tx, "a.sw0 down": tx, "a.nic0 down": tx,
				"b.nic0 up": rx, "b.sw0 up": rx, "b.sw1 down": rx, "b.gpu1 down": rx}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := railsOptions(t, 1, c.file)
			// The tested mode is the second: in the first, address resolution counts as payload in host memory.
			o.Modes = []string{devmem, copy}
			if c.mode == devmem {
				slices.Reverse(o.Modes)
			}
			rep := testkit.Must(Do(t.Context(), o))(t)
			r := &rep.Rails[1]
			tx, rx := r.TX.Device+r.TX.Host, r.RX.Device+r.RX.Host
			if got, want := rep.payload(), c.want(r.Bytes, tx, rx); !maps.Equal(got, want) {
				t.Errorf("%v, not %v", got, want)
			}
			for _, l := range rep.Runs[1].Links {
				if l.Bytes < l.Payload {
					t.Errorf("%s: %d bytes in all, of which %d are payload", l.Name, l.Bytes, l.Payload)
				}
			}
		})
	}
}

// Bytes that processors copy are reported apart from links, in mode copy.
func TestCopiesOfStacksAreSaidApart(t *testing.T) {
	testkit.LeavesNothing(t)
	o := railsOptions(t, 2, "a3-high")
	o.Bidir, o.Size = true, 1<<20
	rep := testkit.Must(Do(t.Context(), o))(t)
	for i, want := range [][]StackCopies{nil, {{"a", StackVNIC, 4, 4 * 4 << 20}, {"b", StackVNIC, 4, 4 * 4 << 20}}} {
		testkit.Equal(t, "mode "+rep.Runs[i].Mode, fmt.Sprint(rep.Runs[i].StackCopies), fmt.Sprint(want))
	}
	// At each end the engine and the NIC each move a byte through memory; NICs also move bytes that are sent again.
	sent, received := rep.Runs[1].TX.Host, rep.Runs[1].RX.Host
	got := rep.payload()
	testkit.Equal(t, "payload in memory", got["a.s0 memory"]+got["b.s0 memory"]+got["a.s1 memory"]+got["b.s1 memory"],
		2*rep.Runs[1].Bytes+sent+received)
	for i := range rep.Rails {
		if rep.Rails[i].StackCopies != nil {
			t.Errorf("a rail has %v", rep.Rails[i].StackCopies)
		}
	}
	var b strings.Builder
	testkit.OK(t, rep.Table(&b))
	const line = "copies of %s's processors, not counted and in no link, by its stack (ours): 4 bytes of memory a byte " +
		"of payload, 16,777,216\n"
	for _, guest := range []string{"a", "b"} {
		testkit.Equal(t, "lines of "+guest, strings.Count(b.String(), fmt.Sprintf(line, guest)), 1)
	}
	validReport(t, rep)
}

// Each guest's copies have the factor of its own stack.
func TestCopiesOfStacksGoByTheModel(t *testing.T) {
	o := Defaults()
	o.NIC, o.Rails = "gve,virtio", 2
	testkit.OK(t, o.Check())
	r := testkit.Must(planned(&o))(t)
	runs := []*Run{{Bytes: 10}, {Bytes: 1}}
	testkit.Equal(t, "copies", fmt.Sprint(r.stackCopies(transfer.Copy, runs)), "[{a linux 2 22} {b vnic 4 44}]")
	if list := r.stackCopies(transfer.Devmem, runs); list != nil {
		t.Errorf("in mode devmem: %v", list)
	}
}

// A lab much faster than this machine gives no share of a link's rate.
func TestNoShareWhereLinksAreNotTheLimit(t *testing.T) {
	testkit.LeavesNothing(t)
	o := railsOptions(t, 1, "a3-high")
	o.Modes, o.Scale, o.MustShare = []string{transfer.Devmem}, "1", true
	testkit.OK(t, o.Check())
	rep, err := Do(t.Context(), o)
	if s := rep.Rails[0].Share; s == nil || s.OfRate != nil || s.Why == "" || s.Probe == 0 || s.LineRate != 25e9 {
		t.Errorf("%+v", s)
	}
	if !errors.Is(err, ErrProof) || !strings.Contains(err.Error(), "a.nic0 to b.nic0: no share: ") {
		t.Errorf("error %v", err)
	}
	var b strings.Builder
	testkit.OK(t, rep.Table(&b))
	if !strings.Contains(b.String(), "no share: ") || !strings.Contains(b.String(), "model, not measured: 98.") {
		t.Error(b.String())
	}
}

// A transfer over a slow link has at most the link's rate, and 15 % for bursts, however busy the machine is.
func TestShareOfSlowLinks(t *testing.T) {
	testkit.Slow(t)
	testkit.LeavesNothing(t)
	o := railsOptions(t, 1, file(t, "sockets: [{name: s0}], nics: [{name: nic0, below: s0, rate: 8Mbit}], "+
		"gpus: [{name: gpu0, below: s0}]", ""))
	o.Modes, o.Scale = []string{transfer.Copy}, "1"
	testkit.OK(t, o.Check())
	rep := testkit.Must(Do(t.Context(), o))(t)
	r := &rep.Rails[0]
	if r.Rate() > 1.15e6 || r.Share.Probe < 1.5e6 ||
		!slices.Contains([]string{"a.nic0 out", "b.nic0 in"}, r.Share.ModelLimit) {
		t.Errorf("%v bytes a second; %+v", r.Rate(), r.Share)
	}
	if s := r.Share; s.OfRate != nil && (*s.OfRate > 1.15 || s.Limit == "") || s.OfRate == nil && s.Why == "" {
		t.Errorf("%+v", s)
	}
	validReport(t, rep)
}

// The model predicts for the rail of a NIC at half rate half the rate of the others. But for
// a burst, no rail is faster than its NICs.
func TestOneRailAtHalfRate(t *testing.T) {
	testkit.Slow(t)
	testkit.LeavesNothing(t)
	const slow, scale, rate = 2, 10_000, 25e9
	o := railsOptions(t, 4, "a3-high")
	o.Modes, o.Bidir, o.Size, o.Scale = []string{transfer.Devmem}, true, 2<<20, fmt.Sprint(scale)
	o.Lab.Guests[0].NICs[slow].Rate /= 2
	testkit.OK(t, o.Check())
	rep := testkit.Must(Do(t.Context(), o))(t)
	testkit.Equal(t, "transfers", len(rep.Rails), 8)
	for i := range rep.Rails {
		r := &rep.Rails[i]
		s, want := r.Share, float64(rate)
		if r.Rail == slow {
			want /= 2
		}
		if s.LineRate != want || s.Model < 0.95*want || s.Model > want ||
			(r.Rail == slow) != strings.HasPrefix(s.ModelLimit, "a.nic2 ") {
			t.Errorf("%s to %s: the model says %.0f of %.0f, by %s", r.From, r.To, s.Model, s.LineRate, s.ModelLimit)
		}
		// The bytes of 0.15 s more: a link that was idle lets a burst through.
		if most := want/scale + want/scale*0.15/r.Seconds; r.Rate() > most {
			t.Errorf("%s to %s: %.0f bytes a second of %.0f at most", r.From, r.To, r.Rate(), most)
		}
		if s.OfPossible != nil && (*s.OfPossible < 0.85 || *s.OfPossible > 1.15) {
			t.Errorf("%s to %s has %.2f of its possible", r.From, r.To, *s.OfPossible)
		}
	}
}

func TestAutoScale(t *testing.T) {
	for _, c := range []struct {
		model, probe []float64
		size         uint64
		want         float64
	}{
		{[]float64{15e9, 25e9}, []float64{1e9, 1e9}, 1 << 40, 100}, // 25e9 / 100 * 3 is below 1e9
		{[]float64{15e9, 25e9}, []float64{1e9, 0.7e9}, 1 << 40, 200},
		{[]float64{1e6}, []float64{1e9}, 1 << 40, 1},
		{[]float64{1e9}, []float64{1e12}, 1 << 20, 5000}, // 4e9 / 5000 bytes, less than 1 MiB, pass in four seconds
		{[]float64{math.Inf(1)}, []float64{1}, 0, 1},
		{[]float64{1e15}, []float64{1}, 1, 0},
	} {
		if got, err := autoScale(c.model, c.probe, c.size); got != c.want || (err == nil) == (c.want == 0) {
			t.Errorf("%v: scale %v, %v, not %v", c, got, err, c.want)
		}
	}
}

func TestProbeIsAPartOfThePlan(t *testing.T) {
	p := plan{pool: 5, rounds: []uint64{64 << 10, 64 << 10, 10}}
	for n, want := range map[uint64][]uint64{0: {page}, 5000: {page}, 64 << 10: {64 << 10}, 68 << 10: {64 << 10, page},
		1 << 20: {64 << 10, 64 << 10, 10}} {
		if got := p.part(n); got.pool != 5 || !slices.Equal(got.rounds, want) {
			t.Errorf("of %d bytes: %v, not %v", n, got, want)
		}
	}
}

func TestScaleMistakes(t *testing.T) {
	for _, c := range []struct {
		scale string
		check bool
		lab   string
		want  string
	}{{"0", false, "pair", "--scale 0: 1 to 1000000, or auto"}, {"fast", false, "pair", "--scale fast: "},
		{"10", false, "", "--scale is of links with rates: --lab a3-high"},
		{"", true, "pair", "--check is of shares: --scale auto"},
	} {
		o := railsOptions(t, 1, c.lab)
		o.Scale, o.MustShare = c.scale, c.check
		if err := o.Check(); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

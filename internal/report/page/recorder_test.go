package page

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"vnic.dev/vnic/internal/report/stat"
	"vnic.dev/vnic/internal/testkit"
)

// Invariant: page: A recording has at most 300 samples of 64 links and 32 flows, from a run's beginning to its end.
func TestRecordingIsBounded(t *testing.T) {
	p := large(1e12)
	r := newRecorder(func() *stat.Page { return p })
	first := r.samples[0].when
	for range 1000 {
		r.look(true)
	}
	r.Close()
	s := r.copy()
	if len(s) > maxSamples || len(s) < maxSamples/2 {
		t.Errorf("%d samples", len(s))
	}
	if s[0].when-first > s[len(s)-1].when/2 {
		t.Errorf("from %v to %v: the beginning is gone", s[0].when, s[len(s)-1].when)
	}
	for i := range s {
		if len(s[i].links) != sampledLinks || len(s[i].flows) != sampledFlows {
			t.Fatalf("%d links, %d flows", len(s[i].links), len(s[i].flows))
		}
	}
	rec := record(s)
	if len(rec.Links) != sampledLinks || len(rec.Flows) != sampledFlows || len(rec.Samples) != len(s) {
		t.Errorf("%d links, %d flows, %d samples", len(rec.Links), len(rec.Flows), len(rec.Samples))
	}
}

func TestSamplesGetFartherApart(t *testing.T) {
	reads := 0
	r := newRecorder(func() *stat.Page { reads++; return small() })
	r.clock, r.resume = func() time.Duration { return 0 }, 0
	defer r.Watch()()
	for range maxSamples*8 - 2 {
		r.look(false)
	}
	if r.every != 8 || len(r.samples) > maxSamples {
		t.Errorf("every %d looks, %d samples", r.every, len(r.samples))
	}
	if most := maxSamples * 8; reads >= most {
		t.Errorf("the counters were read %d times for %d looks", reads, most)
	}
}

// Invariant: page: While no page is open, counters are read at most once a second; and after a
// reading the recorder does not read for ten times as long as that reading took, except at its end.
func TestNobodyWatching(t *testing.T) {
	reads := 0
	r := newRecorder(func() *stat.Page { reads++; return small() })
	r.clock, r.resume = func() time.Duration { return 0 }, 0
	looks := func(n int) int {
		before := reads
		for range n {
			r.look(false)
		}
		return reads - before
	}
	testkit.Equal(t, "reads in 10 s", looks(10*liveEvery), 10)
	testkit.Equal(t, "samples", len(r.samples), 11)
	closed := r.Watch()
	testkit.Equal(t, "reads in 10 s, with a page", looks(10*liveEvery), 40)
	closed()
	testkit.Equal(t, "after it", looks(10*liveEvery), 10)
	for range 400 {
		looks(liveEvery)
	}
	if len(r.samples) >= maxSamples || r.every != 2*liveEvery {
		t.Errorf("%d samples, every %d", len(r.samples), r.every)
	}
}

func TestLooksTakeATenthOfTheTime(t *testing.T) {
	var now, read time.Duration
	const length = 300 * time.Millisecond
	reads := 0
	r := newRecorder(func() *stat.Page { reads++; now += read; return small() })
	r.clock, r.resume = func() time.Duration { return now }, 0
	defer r.Watch()()
	_, next := r.State()
	read = length
	for range 400 { // at least 100 s
		now += firstInterval
		r.look(false)
	}
	if spent := time.Duration(reads-1) * length; spent > now/pause || spent < now/(2*pause) {
		t.Errorf("%v of %v", spent, now)
	}
	select {
	case <-next:
	default:
		t.Error("there is no new state")
	}
	read = 0
	now += time.Minute
	before := reads
	r.look(false)
	testkit.Equal(t, "readings that were due", reads-before, 1)
}

func TestNothingIsRecordedBeforeALab(t *testing.T) {
	r := newRecorder(func() *stat.Page { return &stat.Page{Snapshot: &stat.Snapshot{}} })
	r.Close()
	if r.Seen() || len(r.samples) != 0 {
		t.Error(r.samples)
	}
}

func TestSampleHasWhatFlowsDid(t *testing.T) {
	window := uint16(7)
	p := small()
	p.Flows = &stat.Flows{List: []stat.Flow{{Proto: "tcp", From: "10.0.0.1:1", To: "10.0.0.2:2", State: "open",
		TX: []stat.FlowSide{{Device: 100, Host: 20, Again: 3, Drops: map[string]uint64{"link-loss": 2, "no-buffer": 1},
			InFlight: 9, Window: &window}},
		RX: []stat.FlowSide{{Device: 80, GPUFile: 5, Host: 10}}}}}
	b := testkit.Must(json.Marshal(record([]sample{take(p, 1500*time.Millisecond)})))(t)
	testkit.Equal(t, "JSON", string(b), `{"links":["A out","A in"],"flows":["tcp 10.0.0.1:1 \u003e 10.0.0.2:2"],`+
		`"samples":[{"t":1.5,"l":[[0,7,0],[1,0,0]],"f":[[0,120,85,10,3,3,9,7,"open"]]}]}`)
}

// Invariant: page: A report is below 2 MB, and no name in it is HTML.
func TestReportIsBoundedAndEscaped(t *testing.T) {
	testkit.Slow(t)
	r := newRecorder(func() *stat.Page { return large(1 << 62) })
	for range maxSamples {
		r.keep(take(r.page, time.Since(r.began)+1000*time.Hour))
	}
	b := testkit.Must(r.Report())(t)
	if len(b) >= maxReport {
		t.Errorf("%d bytes", len(b))
	}
	_, data, ok := bytes.Cut(b, []byte(`id="data">`))
	data, _, closed := bytes.Cut(data, []byte("</script>"))
	if !ok || !closed {
		t.Fatal("it has no data")
	}
	if i := bytes.IndexAny(data, "<>&"); i >= 0 {
		t.Errorf("in the data: %.60q", data[i:])
	}
	if bytes.Contains(b, []byte(hostile)) {
		t.Error("a hostile name is HTML")
	}
	var s struct {
		Page struct {
			Machines []struct {
				Name string `json:"name"`
			} `json:"machines"`
			MoreFlows int `json:"more_flows"`
			Memory    []Memory
		} `json:"page"`
		Recording struct {
			Samples []json.RawMessage `json:"samples"`
		} `json:"recording"`
		Report bool `json:"report"`
	}
	testkit.OK(t, json.Unmarshal(data, &s))
	if !s.Report || len(s.Page.Machines) != 8 || !strings.HasSuffix(s.Page.Machines[0].Name, hostile) ||
		s.Page.MoreFlows != 2000-reportFlows || len(s.Page.Memory) != 128 || len(s.Recording.Samples) < 30 {
		t.Errorf("%d machines, %d more flows, %d maps, %d samples", len(s.Page.Machines), s.Page.MoreFlows,
			len(s.Page.Memory), len(s.Recording.Samples))
	}
}

func TestReportThatWouldBeTooLarge(t *testing.T) {
	p := small()
	p.Machines[0].Name = strings.Repeat("a", maxReport)
	r := newRecorder(func() *stat.Page { return p })
	defer r.Close()
	b, err := r.Report()
	testkit.ErrorIs(t, err, errTooLarge)
	testkit.ErrorSays(t, err, "more than 2000000: the lab is too large for a report")
	testkit.Equal(t, "bytes", len(b), 0)
}

// At the end no memory is in use: the report shows the memory of the last read with a use, and a live state shows none.
func TestReportHasMemoryAsItWasUsedLast(t *testing.T) {
	p := small()
	p.Memory = []stat.GPUMap{{GPU: "A", Bytes: 1 << 20, Ranges: []stat.MemoryRange{{Len: 4096, State: "held", Port: "A"}}}}
	r := newRecorder(func() *stat.Page { return p })
	p = small()
	p.Memory = []stat.GPUMap{{GPU: "A", Bytes: 1 << 20}}
	r.Close()
	text := string(testkit.Must(r.Report())(t))
	if !strings.Contains(text, `"uses":[{"state":"held","port":"A","queue":0,"bytes":4096}]`) ||
		!strings.Contains(text, `"memory_at":0`) {
		t.Error("the report has no memory that was used")
	}
	if live, _ := r.State(); !strings.Contains(string(live), `"uses":[]`) || strings.Contains(string(live), "memory_at") {
		t.Errorf("live: %s", live)
	}
}

func TestReportOfALargeLabKeepsItsSamples(t *testing.T) {
	p := large(1e11)
	p.Links, p.Flows.List = p.Links[:64], p.Flows.List[:32]
	for i := range p.Machines {
		p.Machines[i].Name = p.Machines[i].Name[:8]
	}
	for i := range p.Links {
		p.Links[i].Name = p.Links[i].Name[:8] + p.Links[i].Name[len(p.Links[i].Name)-9:]
	}
	p.Memory, p.Events = p.Memory[:16], p.Events[:0]
	r := newRecorder(func() *stat.Page { return p })
	for i := range maxSamples - 1 {
		r.keep(take(p, time.Duration(i+1)*time.Second))
	}
	b := testkit.Must(r.Report())(t)
	if n := bytes.Count(b, []byte(`{"t":`)); len(b) >= maxReport || n != maxSamples {
		t.Errorf("%d bytes, %d samples", len(b), n)
	}
}

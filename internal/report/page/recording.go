package page

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"vnic.dev/vnic/internal/report/stat"
)

// Bounds of samples, and the interval of a Recorder's ticks.
const (
	maxSamples    = 300
	sampledLinks  = 64
	sampledFlows  = 32
	firstInterval = 250 * time.Millisecond
)

// Recording has counters over time. Samples refer to Links and Flows by index.
type Recording struct {
	Links   []string     `json:"links"`
	Flows   []string     `json:"flows"` // "tcp 10.0.0.1:5 > 10.0.0.2:6"
	Samples []sampleJSON `json:"samples"`
}

// sampleJSON is a sample: seconds since the Recorder began, and counters.
type sampleJSON struct {
	At    float64      `json:"t"`
	Links [][3]float64 `json:"l"` // index in Recording.Links, bytes, busy seconds
	Flows [][9]any     `json:"f"` // results of flowSample.json: index in Recording.Flows, then the flow's fields
}

type sample struct {
	when  time.Duration
	links []linkSample
	flows []flowSample
}

type linkSample struct {
	name  string
	bytes uint64
	busy  float64
}

type flowSample struct {
	name                         string
	sent, gpu, host, again, lost uint64
	inFlight                     *uint64 // nil, as is window: unknown
	window                       *uint16
	state                        string
}

func (f *flowSample) json(i int) [9]any {
	return [9]any{i, f.sent, f.gpu, f.host, f.again, f.lost, f.inFlight, f.window, f.state}
}

func take(p *stat.Page, when time.Duration) sample {
	s := sample{when: when}
	for i := range p.Links {
		l := &p.Links[i]
		if l.Bytes > 0 {
			s.links = append(s.links, linkSample{l.Name, l.Bytes, l.Busy})
		}
	}
	if p.Links == nil { // without links of a lab the sample has the ports' wires
		for i := range p.Ports {
			w := &p.Ports[i]
			s.links = append(s.links, linkSample{w.Name + " out", w.Link.SentBytes, 0},
				linkSample{w.Name + " in", w.Link.ReceivedBytes, 0})
		}
	}
	slices.SortStableFunc(s.links, func(a, b linkSample) int {
		return cmp.Or(cmp.Compare(b.busy, a.busy), cmp.Compare(b.bytes, a.bytes))
	})
	s.links = slices.Clip(s.links[:min(len(s.links), sampledLinks)])
	if p.Flows == nil {
		return s
	}
	for i := range p.Flows.List[:min(len(p.Flows.List), sampledFlows)] { // the list begins with the largest flows
		s.flows = append(s.flows, sampleFlow(&p.Flows.List[i]))
	}
	return s
}

func sampleFlow(f *stat.Flow) flowSample {
	s := flowSample{name: fmt.Sprintf("%s %s > %s", f.Proto, f.From, f.To), state: f.State}
	if len(f.TX) > 0 && f.TX[0].Window != nil {
		n := f.TX[0].InFlight
		s.inFlight, s.window = &n, f.TX[0].Window
	}
	for i := range f.TX {
		t := &f.TX[i]
		s.sent += t.Payload()
		s.again += t.Again
		s.lost += drops(t)
	}
	for i := range f.RX {
		r := &f.RX[i]
		s.gpu += r.GPU()
		s.host += r.Host
		s.lost += drops(r)
	}
	return s
}

func drops(s *stat.FlowSide) (n uint64) {
	for _, d := range s.Drops {
		n += d
	}
	return n
}

// record returns the Recording of samples, with at most sampledLinks links, the busiest ones, and at most sampledFlows
// flows, the ones with the most payload.
func record(samples []sample) Recording {
	r := Recording{Samples: make([]sampleJSON, 0, len(samples))}
	links, flows := map[string]float64{}, map[string]float64{}
	for i := range samples {
		for _, l := range samples[i].links {
			links[l.name] = max(links[l.name], l.busy*1e12+float64(l.bytes))
		}
		for _, f := range samples[i].flows {
			flows[f.name] = max(flows[f.name], float64(max(f.sent, f.gpu+f.host)))
		}
	}
	var linkAt, flowAt map[string]int
	r.Links, linkAt = largest(links, sampledLinks)
	r.Flows, flowAt = largest(flows, sampledFlows)
	for i := range samples {
		s := &samples[i]
		j := sampleJSON{At: round(s.when.Seconds()), Links: [][3]float64{}, Flows: [][9]any{}}
		for _, l := range s.links {
			if n, ok := linkAt[l.name]; ok {
				j.Links = append(j.Links, [3]float64{float64(n), float64(l.bytes), round(l.busy)})
			}
		}
		for k := range s.flows {
			if n, ok := flowAt[s.flows[k].name]; ok {
				j.Flows = append(j.Flows, s.flows[k].json(n))
			}
		}
		r.Samples = append(r.Samples, j)
	}
	return r
}

func round(seconds float64) float64 { return math.Round(seconds*1000) / 1000 }

func largest(values map[string]float64, n int) (names []string, index map[string]int) {
	names = make([]string, 0, len(values))
	for name := range values {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(values[b], values[a]), cmp.Compare(a, b)) })
	names = names[:min(len(names), n)]
	index = make(map[string]int, len(names))
	for i, name := range names {
		index[name] = i
	}
	return names, index
}

package run

import (
	"slices"
	"sync"
	"time"

	"vnic.dev/vnic/internal/session"
)

// Recorder records, for a Picture of a run, samples of the bytes that transfers moved and of the packets lost, and
// events (Mark). A nil Recorder records nothing.
type Recorder struct {
	Name string

	mu    sync.Mutex
	modes []*recorded
}

// recorded has the samples of one mode.
type recorded struct {
	mode  string
	begin time.Time // begin of the mode's first transfer; zero: none has begun
	flows []*flow
	marks []mark
}

// flow is one direction of a rail in one mode, or without rails the transfer.
type flow struct {
	from, to    string
	list        []reading
	bytes, lost uint64 // totals of the rounds whose data has been moved
}

// reading is a sample: a flow's payload bytes, retransmissions included, and lost packets, over all its rounds so far.
type reading struct {
	when        time.Time
	bytes, lost uint64
	first       bool // the first reading of its round
}

type mark struct {
	when time.Time
	text string
}

const (
	sampleOften  = 10 * time.Millisecond // between samples, until sampleOftenS after the mode's first transfer began
	sampleOftenS = time.Second
	sampleLater  = 50 * time.Millisecond // between samples, after that
	maxSamples   = 1 << 13               // a flow with so many samples: add drops about every other one
)

// mode begins a mode. Before the first one, as in a probe, nothing is recorded.
func (r *Recorder) mode(mode string) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.modes = append(r.modes, &recorded{mode: mode})
}

// Mark records that now happens what text says in a few words. Before the first transfer of the current mode it does
// nothing.
func (r *Recorder) Mark(text string) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.modes); n > 0 && !r.modes[n-1].begin.IsZero() {
		r.modes[n-1].marks = append(r.modes[n-1].marks, mark{time.Now(), text})
	}
}

type sampler struct {
	t     *round
	flow  *flow
	since time.Time
	lost  uint64 // t.lost() when sample was called
}

// sample adds the first sample of a round, whose transfer begins now, and returns the sampler for the others; nil: the
// round is not recorded.
func (r *Recorder) sample(t *round, now time.Time) *sampler {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.modes) == 0 {
		return nil
	}
	m := r.modes[len(r.modes)-1]
	if m.begin.IsZero() {
		m.begin = now
	}
	a, b := t.s.ends[0].Name, t.s.ends[1].Name
	i := slices.IndexFunc(m.flows, func(f *flow) bool { return f.from == a && f.to == b })
	if i < 0 {
		i = len(m.flows)
		m.flows = append(m.flows, &flow{from: a, to: b})
	}
	s := &sampler{t: t, flow: m.flows[i], since: m.begin, lost: t.lost()}
	s.flow.add(reading{when: now, bytes: s.flow.bytes, lost: s.flow.lost, first: true})
	return s
}

// lost returns about how many packets the stream's NICs on this host and their links have dropped. With Bidir only the
// sending NIC counts, if it is on this host: the receiving NIC counts for the other direction.
func (t *round) lost() uint64 {
	if a := t.s.ends[0]; t.s.opt.Bidir && !a.away() {
		return countersOf(a.nic()).drops
	}
	return t.s.counters().drops
}

func (s *sampler) follow(done <-chan struct{}) {
	every := sampleOften
	tick := time.NewTicker(every)
	defer tick.Stop()
	for last := s.since; ; {
		select {
		case <-done:
			return
		case <-tick.C:
		}
		now := time.Now()
		if now.Sub(last) < every/2 { // the previous tick came late
			continue
		}
		have := session.Payload(s.t.flows.moved())
		s.flow.add(reading{when: now, bytes: s.flow.bytes + have, lost: s.flow.lost + s.t.lost() - s.lost})
		if last = now; every == sampleOften && now.Sub(s.since) > sampleOftenS {
			every = sampleLater
			tick.Reset(every)
		}
	}
}

// end adds the last sample of a round that has moved so many bytes until when. On a nil sampler it does nothing.
func (s *sampler) end(when time.Time, bytes uint64) {
	if s == nil {
		return
	}
	f := s.flow
	f.bytes += bytes
	f.lost += s.t.lost() - s.lost
	n := len(f.list)
	// Drop the samples that are less than sampleOften/2 before when, or after it, but not the round's first.
	for n > 0 && !f.list[n-1].first && when.Sub(f.list[n-1].when) < sampleOften/2 {
		n--
	}
	f.list = append(f.list[:n], reading{when: when, bytes: f.bytes, lost: f.lost})
}

// add adds a sample. If there are then maxSamples or more, it drops every other one, but no round's first or last.
// Samples are running totals, so no bytes are lost.
func (f *flow) add(s reading) {
	f.list = append(f.list, s)
	if len(f.list) < maxSamples {
		return
	}
	few := f.list[:0]
	for i, s := range f.list {
		bound := s.first || i == len(f.list)-1 || f.list[i+1].first
		if bound || i%2 == 0 {
			few = append(few, s)
		}
	}
	f.list = few
}

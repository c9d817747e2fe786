package run

import (
	"slices"
	"sync"
	"time"

	"vnic.dev/vnic/internal/session"
)

// Recorder takes samples of what transfers move, for a Picture of the run, and marks of what happens meanwhile. A nil
// Recorder takes none. Each transfer has a goroutine that reads counters which anybody may read; nothing is locked that
// packets need.
type Recorder struct {
	Name string // of the lab, for the title

	mu    sync.Mutex
	modes []*recorded
}

// recorded is what there is of a mode.
type recorded struct {
	mode  string
	begin time.Time // when its first transfer began; zero: none has
	flows []*flow
	marks []mark
}

// flow is one direction of a rail.
type flow struct {
	from, to    string
	list        []reading
	bytes, lost uint64 // of rounds that have ended
}

// reading is what a flow has moved and lost so far, all rounds together.
type reading struct {
	when        time.Time
	bytes, lost uint64
	first       bool // of a round: nothing moved between the sample before and this one
}

// mark is something that happened.
type mark struct {
	when time.Time
	text string
}

const (
	sampleOften  = 10 * time.Millisecond // at first: a small transfer takes a tenth of a second
	sampleOftenS = time.Second
	sampleLater  = 50 * time.Millisecond
	maxSamples   = 1 << 13 // of a flow; then every other one is dropped
)

// mode begins a mode. What goes on before, as a probe does, is not recorded.
func (r *Recorder) mode(mode string) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.modes = append(r.modes, &recorded{mode: mode})
}

// Mark says what happens now, in a few words: a fault is set, a link goes down.
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

// sampler samples a round.
type sampler struct {
	t     *round
	flow  *flow
	since time.Time // the mode's begin
	lost  uint64    // before the round
}

// sample begins with a round; nil: nobody wants its samples.
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

// lost is how many packets have been dropped so far. What the other end sends is counted with the transfer that it is,
// if it is one.
func (t *round) lost() uint64 {
	if a := t.s.ends[0]; t.s.opt.Bidir && !a.away() {
		return countersOf(a.nic()).drops
	}
	return t.s.counters().drops
}

// follow samples until the end of the round.
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
		if now.Sub(last) < every/2 { // the tick before came late
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

// end adds the last sample, when counters have settled: bytes that the round has received until at.
func (s *sampler) end(when time.Time, bytes uint64) {
	if s == nil {
		return
	}
	f := s.flow
	f.bytes += bytes
	f.lost += s.t.lost() - s.lost
	n := len(f.list)
	for n > 0 && !f.list[n-1].first && when.Sub(f.list[n-1].when) < sampleOften/2 { // or later
		n--
	}
	f.list = append(f.list[:n], reading{when: when, bytes: f.bytes, lost: f.lost})
}

// add adds a sample. They are sums, so none is missed when some are dropped.
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

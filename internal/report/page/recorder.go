package page

import (
	"context"
	"slices"
	"sync"
	"time"

	"vnic.dev/vnic/internal/report/stat"
)

const liveEvery = int(time.Second / firstInterval)

// pause bounds the cost of reading: after a read that took t, the Recorder does not read for pause times t, except in
// Close.
const pause = 10

// Recorder reads counters from Record on until Close: once a second, and up to four times a second while a page
// is open, or less often if a read takes long.
type Recorder struct {
	read  func() *stat.Page
	began time.Time
	stop  context.CancelFunc
	wg    sync.WaitGroup
	clock func() time.Duration

	mu      sync.Mutex    // guards the following
	looks   int           // calls of look so far, with or without a read
	live    bool          // the next read makes a state
	due     bool          // the next read makes a sample
	resume  time.Duration // no read before this time, but the last
	pages   int
	every   int // ticks between samples
	samples []sample
	page    *stat.Page    // of the last read for a state
	used    []stat.GPUMap // the maps of the last read with GPU memory in use; nil: no read had any so far
	usedAt  time.Duration
	now     sample        // of the same read as page
	state   []byte        // JSON of page and now; nil: not made yet
	next    chan struct{} // closed when there is a newer state
}

// Record starts a Recorder. read returns the counters; one goroutine at a time calls it, until Close returns.
func Record(read func() *stat.Page) *Recorder {
	ctx, stop := context.WithCancel(context.Background())
	r := newRecorder(read)
	r.stop = stop
	r.wg.Go(func() { r.run(ctx) })
	return r
}

func newRecorder(read func() *stat.Page) *Recorder {
	r := &Recorder{read: read, began: time.Now(), every: 1, next: make(chan struct{}), stop: func() {}}
	r.clock = func() time.Duration { return time.Since(r.began) }
	r.look(true)
	return r
}

// Watch lets the Recorder read more often until closed is called.
func (r *Recorder) Watch() (closed func()) {
	add := func(n int) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.pages += n
	}
	add(1)
	return func() { add(-1) }
}

func (r *Recorder) run(ctx context.Context) {
	t := time.NewTicker(firstInterval)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			r.look(false)
		}
	}
}

// Close ends the Recorder with a last read of the counters.
func (r *Recorder) Close() {
	r.stop()
	r.wg.Wait()
	r.look(true)
}

// look reads the counters if a state is due, or a sample while a page is open, but not before resume. With last
// it always reads them.
func (r *Recorder) look(last bool) {
	begin := r.clock()
	r.mu.Lock()
	r.looks++
	r.live = r.live || last || r.looks%liveEvery == 0
	r.due = r.due || last || r.looks%r.every == 0
	live, keep := r.live, r.due
	if !last && (!live && (!keep || r.pages == 0) || begin < r.resume) {
		r.mu.Unlock()
		return
	}
	r.live, r.due = false, false
	r.mu.Unlock()
	p := r.read()
	end := r.clock()
	s := take(p, end)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.resume = end + pause*(end-begin)
	if keep && len(p.Ports) > 0 {
		r.keep(s)
	}
	if slices.ContainsFunc(p.Memory, func(g stat.GPUMap) bool { return len(g.Ranges) > 0 }) {
		r.used, r.usedAt = p.Memory, s.when
	}
	if live {
		r.page, r.now, r.state = p, s, nil
		close(r.next)
		r.next = make(chan struct{})
	}
}

// keep adds a sample. If there are maxSamples, it drops every second one first, and doubles the samples' interval. The
// caller holds mu.
func (r *Recorder) keep(s sample) {
	if len(r.samples) == maxSamples {
		r.samples = thinned(r.samples)
		if r.pages == 0 {
			r.every = max(r.every, liveEvery)
		}
		r.every *= 2
	}
	r.samples = append(r.samples, s)
}

func thinned(list []sample) []sample {
	out := make([]sample, 0, maxSamples)
	for i := (len(list) - 1) % 2; i < len(list); i += 2 {
		out = append(out, list[i])
	}
	return out
}

// State returns the latest state as JSON, and a channel that is closed when there is a newer state.
func (r *Recorder) State() ([]byte, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state == nil {
		s := State{Page: bounded(r.page, shownFlows), Recording: record([]sample{r.now})}
		r.state = s.encode()
	}
	return r.state, r.next
}

// History returns the samples that the Recorder has kept, as JSON.
func (r *Recorder) History() []byte {
	s := State{Recording: record(r.copy())}
	return s.encode()
}

func (r *Recorder) copy() []sample {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.samples)
}

// Seen reports whether there is any sample: there is none if no read returned a port.
func (r *Recorder) Seen() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.samples) > 0
}

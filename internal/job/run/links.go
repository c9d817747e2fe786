package run

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/lab/shape"
	"vnic.dev/vnic/internal/transfer"
)

// Link is the traffic of one direction of a link, or of a memory, in a mode.
type Link struct {
	// guest and link: 'a.nic0 up' (PCIe, towards the socket), 'a.nic0 down', 'a.s0 memory',
	// 'a.s0 to s1', 'a.nic0 out' and 'a.nic0 in' (Ethernet)
	Name    string  `json:"name"`
	Rate    float64 `json:"rate,omitempty"` // bytes a second, from the lab file; left out if it has none
	Payload uint64  `json:"payload"`        // bytes of payload that crossed it, retransmissions included
	Bytes   uint64  `json:"bytes"`          // payload with headers, rings, and the overhead of links and wires
	// part of its rate that all rails would use at the rates of their NICs: a model, not measured
	Load float64 `json:"load,omitempty"`
}

// Share is the part of its links' rates that one direction of a rail got, or why that is not known; and what a model
// predicts.
type Share struct {
	LineRate float64 `json:"line_rate"` // bytes a second of the slower NIC, from the lab file
	Possible float64 `json:"possible"`  // bytes a second of payload that fit into line_rate
	// payload by line_rate, 1 is all of it; null: why says the reason
	OfRate     *float64 `json:"of_rate" jsonschema:"nullable"`
	OfPossible *float64 `json:"of_possible" jsonschema:"nullable"` // payload by possible
	// the link that was busy for the longest time; left out without a share
	Limit string  `json:"limit,omitempty"`
	Busy  float64 `json:"busy"` // the part of the time that the busiest link was busy
	// bytes a second in a transfer before, of a fourth of the bytes, with links that have no rate
	Probe float64 `json:"probe,omitempty"`
	Why   string  `json:"why,omitempty"` // why there is no share
	// bytes a second of payload that the model predicts from the lab file's rates: not measured
	Model      float64 `json:"model"`
	ModelLimit string  `json:"model_limit,omitempty"` // the link that is full in the model
}

// Bounds of shares and of the probe. measure reports a share only if the first three are kept.
const (
	busyLeast  = 0.95                              // least part of the time that the busiest link was busy
	probeLeast = 1.5                               // the probe, without links' rates, was at least so many times as fast
	shareLeast = 100 * float64(shape.Credit) / 1e9 // least time of the transfer, in seconds
	autoLeast  = 8 * shareLeast                    // least time of a transfer by the model at a scale of auto, in seconds
	probePart  = 4                                 // the probe has a fourth of the bytes
	scaleAuto  = "auto"
)

// shares reports whether the run measures shares: both guests are here, and Scale is set or the lab file's is above 1.
func (o *Options) shares() bool {
	return o.Half == "" && (o.Scale != "" || o.Lab != nil && o.Lab.Scale > 1)
}

func (o *Options) checkScale() error {
	switch {
	case o.MustShare && !o.shares():
		return errors.New("--check is of shares: --scale auto")
	case o.Scale == "" || o.Scale == scaleAuto:
	default:
		if _, err := lab.ParseScale(o.Scale); err != nil {
			return fmt.Errorf("--scale %s: %w, or auto", o.Scale, err)
		}
	}
	if o.Scale != "" && o.Lab == nil {
		return errors.New("--scale is of links with rates: --lab a3-high")
	}
	return nil
}

// perByte returns how many bytes went over each edge (a link of PCIe or between sockets, a memory or a wire)
// for a byte of payload, by the flow counters on this host and, for the copy engines in mode copy, by the
// payload. It takes the paths from the lab's description, as if p2p did not change during the run.
func (s *stream) perByte(mode string) map[*lab.Edge]float64 {
	bytes := make(map[*lab.Edge]float64)
	for i, e := range s.ends {
		if e.away() {
			continue
		}
		way, gpu := lab.ByHost, s.places[i].gpu
		if mode == transfer.Devmem {
			path := e.HW.Tree.Path(e.Port.Place, e.HW.GPUs[gpu].Place)
			way = lab.Way{GPU: gpu, Bounced: s.r.desc.NoP2P || !path.P2P()}
		}
		c := &s.links.flows[i]
		tx, rx := way, lab.ByHost // at the sender: of payload, and of acknowledgments
		if i == 1 {
			tx, rx = lab.ByHost, way
		}
		e.Port.CarryFlow(bytes, &c.Tx, tx, true)
		e.Port.CarryFlow(bytes, &c.Rx, rx, false)
		if mode == transfer.Copy {
			for _, x := range e.Port.EngineLoads(gpu, 0, i == 0) {
				bytes[x.Edge] += x.Payload * float64(s.links.moved)
			}
		}
	}
	for e := range bytes {
		bytes[e] /= float64(max(s.links.moved, 1))
	}
	return bytes
}

// lineRate returns the lower of the two NICs' rates, in bytes a second at scale 1. A NIC without a rate does not count;
// 0: both have none.
func (s *stream) lineRate() float64 {
	a, b := s.ends[0].Port.Rate(), s.ends[1].Port.Rate()
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// possible returns the highest rate of payload that the NICs' wires allow this stream, with the headers of the last
// mode's transfers, in bytes a second at scale 1; 0: no wire has a rate.
func (s *stream) possible() (least float64) {
	for e, perByte := range s.loads {
		if e.Wire && e.Rate > 0 && perByte >= 1 && (least == 0 || e.Rate/perByte < least) {
			least = e.Rate / perByte
		}
	}
	return least
}

// model predicts the rate of each stream if all transfer at the same time, and the edge that limits it, from the
// streams' loads in the last mode. Without such an edge the rate is +Inf, and the edge nil.
func (r *runner) model() (rates []float64, limits []*lab.Edge) {
	var all []map[*lab.Edge]float64
	for _, s := range r.streams {
		all = append(all, s.loads)
	}
	return lab.MaxMin(all)
}

// autoScale returns the smallest scale of 1, 2, 5, 10 and so on that fits all transfers whose rate the model limits:
// each was at least 2*probeLeast times as fast in the probe as the model allows at this scale, at which it takes at
// least autoLeast for size bytes. If none up to lab.MaxScale fits, autoScale returns an error. The factor 2 is there
// because a transfer that waits for links uses more processor time.
func autoScale(model, probe []float64, size uint64) (float64, error) {
	fits := func(scale float64) bool {
		for i, rate := range model {
			if !math.IsInf(rate, 1) &&
				(rate/scale*2*probeLeast > probe[i] || float64(size) < autoLeast*rate/scale) {
				return false
			}
		}
		return true
	}
	for n := 1.; n <= lab.MaxScale; n *= 10 {
		for _, scale := range []float64{n, 2 * n, 5 * n} {
			if scale <= lab.MaxScale && fits(scale) {
				return scale, nil
			}
		}
	}
	return 0, fmt.Errorf("--scale auto: links are too fast for this machine even at %d: name a lab with slower ones",
		lab.MaxScale)
}

// tally has what a stream's transfers in one mode have counted.
type tally struct {
	edges []*lab.Edge // edges whose busy time is measured
	moved uint64      // bytes of payload, without retransmissions
	flows [2]control.FlowCounts
	taken map[*lab.Edge]int64 // how long any packets kept each edge busy during the transfers, in nanoseconds
	since map[*lab.Edge]int64 // Edge.Busy at the begin of the last transfer
}

func (t *tally) reset() { *t = tally{edges: t.edges, taken: make(map[*lab.Edge]int64)} }

func (t *tally) begin() {
	t.since = make(map[*lab.Edge]int64, len(t.edges))
	for _, e := range t.edges {
		t.since[e] = e.Busy()
	}
}

func (t *tally) end() {
	for _, e := range t.edges {
		t.taken[e] += e.Busy() - t.since[e]
	}
}

func (t *tally) add(n uint64, more [2]control.FlowCounts) {
	t.moved += n
	for i := range more {
		t.flows[i].Tx.Add(more[i].Tx)
		t.flows[i].Rx.Add(more[i].Rx)
	}
}

// measure returns the Share of a stream's transfers at this scale; if there is no OfRate, Why is the reason. probe is
// the stream's rate in the probe, without links' rates, 0 without a probe; model is the predicted rate, limit the edge
// that limits it.
func (s *stream) measure(run *Run, scale, probe, model float64, limit *lab.Edge) *Share {
	x := &Share{LineRate: s.lineRate(), Possible: s.possible(), Probe: probe, Model: model, ModelLimit: limit.Name}
	for e, perByte := range s.loads {
		if b := float64(s.links.taken[e]) / 1e9 / run.Seconds; perByte > 0 && b > x.Busy {
			x.Busy, x.Limit = b, e.Name
		}
	}
	switch {
	case probe == 0:
		x.Why = "no scale was said: --scale auto"
	case x.LineRate == 0:
		x.Why = "its NICs have no rate"
	case run.Seconds < shareLeast:
		x.Why = fmt.Sprintf("%.2f s of %.1f s at least: a larger --size or --scale", run.Seconds, shareLeast)
	case probe < probeLeast*run.Rate():
		x.Why = fmt.Sprintf("guest-bound: without links' rates it was %.2f times as fast, of %.1f at least: a larger --scale",
			probe/run.Rate(), probeLeast)
	case x.Busy < busyLeast:
		x.Why = fmt.Sprintf("guest-bound: no link was taken for more than %.0f %% of the time: a larger --scale", x.Busy*100)
	default:
		rate := run.Rate() * scale
		ofRate, possible := rate/x.LineRate, rate/x.Possible
		x.OfRate, x.OfPossible = &ofRate, &possible
		return x
	}
	x.Limit = ""
	return x
}

// linksSince returns the edges of this host's guests that have carried bytes since r.carried returned the map before,
// the most loaded first. Load is the part of an edge's rate that the transfers would use at the highest rates that
// the wires allow (possible); 0 for an edge without a rate.
func (r *runner) linksSince(before map[*lab.Edge]lab.Carried) (list []Link) {
	full := make(map[*lab.Edge]float64)
	for _, s := range r.streams {
		possible := s.possible()
		for e, perByte := range s.loads {
			full[e] += perByte * possible
		}
	}
	for e, now := range r.carried() {
		was := before[e]
		l := Link{Name: e.Name, Rate: e.Rate, Payload: now.Payload - was.Payload, Bytes: uint64(now.Bytes - was.Bytes)}
		if e.Rate > 0 {
			l.Load = full[e] / e.Rate
		}
		if l.Bytes > 0 {
			list = append(list, l)
		}
	}
	slices.SortFunc(list, func(a, b Link) int {
		return cmp.Or(cmp.Compare(b.Load, a.Load), cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Name, b.Name))
	})
	return list
}

func (r *runner) carried() map[*lab.Edge]lab.Carried {
	m := make(map[*lab.Edge]lab.Carried)
	for _, g := range r.Guests {
		for _, p := range g.HW.Ports {
			p.Carry(m)
		}
	}
	return m
}

func (x *Share) why() string {
	if x == nil {
		return "nothing on its way has a rate"
	}
	return x.Why
}

// probe sets the lab's scale, if Options.Scale is set. If the run measures shares, it first transfers a fourth of the
// bytes (a page at least) in each mode without links' rates, from which it computes the scale of --scale auto.
func (r *runner) probe(ctx context.Context) error {
	o, clock := r.opt, r.Lab.Clock()
	scale := clock.Scale()
	if o.Scale != "" && o.Scale != scaleAuto {
		scale, _ = lab.ParseScale(o.Scale)
		if err := r.Lab.SetScale(scale); err != nil {
			return err
		}
	}
	if !o.shares() {
		return nil
	}
	o.Tell("probe: a fourth of the bytes without links' rates")
	stage, progress, plans := o.Stage, o.Progress, make([]plan, len(r.streams))
	o.Stage, o.Progress = nil, nil
	for i, s := range r.streams {
		plans[i], s.plan = s.plan, s.plan.part(o.Size/probePart)
		s.opt.Pause = ""
		s.probe = make(map[string]float64)
	}
	defer func() {
		o.Stage, o.Progress = stage, progress
		for i, s := range r.streams {
			s.plan, s.opt.Pause = plans[i], o.Pause
		}
	}()
	if err := r.Lab.SetScale(0); err != nil {
		return err
	}
	least := 1.
	for i, mode := range o.Modes {
		var rep Report
		if err := r.runMode(ctx, &rep, mode, uint64(len(o.Modes)+i)); err != nil {
			return fmt.Errorf("probe in mode %s: %w", mode, err)
		}
		if err := r.lost(); err != nil {
			return fmt.Errorf("probe in mode %s: %w", mode, err)
		}
		rates := make([]float64, len(r.streams))
		for i, s := range r.streams {
			rates[i] = rep.Rails[i].Rate()
			s.probe[mode] = rates[i]
		}
		model, _ := r.model()
		fits, err := autoScale(model, rates, o.Size)
		if err != nil && o.Scale == scaleAuto {
			return err
		}
		least = max(least, fits)
	}
	if o.Scale == scaleAuto {
		scale = least
	}
	return r.Lab.SetScale(scale)
}

// playScript sets r.begun, which at its first call starts to play the events of the lab file's script that concern NICs
// and GPUs on this host. They are played until end is called or ctx ends; end waits for the player.
func (r *runner) playScript(ctx context.Context) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	var once sync.Once
	var wg sync.WaitGroup
	r.begun = func() {
		once.Do(func() {
			if r.opt.Lab == nil || len(r.opt.Lab.Script) == 0 {
				return
			}
			wg.Go(func() {
				r.Lab.Play(ctx, r.local(r.opt.Lab.Script), func(e lab.Event, err error) {
					r.opt.Recorder.Mark(e.Change.String())
					r.opt.Tell("%s", e.Told(err))
				})
			})
		})
	}
	return func() {
		cancel()
		wg.Wait()
	}
}

// part returns the plan for the first n bytes of p, or all of p if it has fewer. n is rounded down to whole pages, but
// one page at least.
func (p plan) part(n uint64) (few plan) {
	few.pool = p.pool
	for n = max(n, page) / page * page; n > 0 && len(few.rounds) < len(p.rounds); {
		few.rounds = append(few.rounds, min(n, p.rounds[len(few.rounds)]))
		n -= few.rounds[len(few.rounds)-1]
	}
	return few
}

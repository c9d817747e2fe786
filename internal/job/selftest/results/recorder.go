package results

import (
	"cmp"
	"fmt"
	"path"
	"strings"
	"sync"
	"time"

	"vnic.dev/vnic/internal/job/selftest/ktap"
	"vnic.dev/vnic/internal/job/selftest/splat"
)

// Options of a Recorder.
type Options struct {
	Name   string // Program.Name
	Column Column
	Only   []string
	Cases  []string // names of the cases in their order; nil: unknown
	Now    func() time.Time
	// Event, unless it is nil, is called with each event of the parser. It must not call the Recorder.
	Event func(ktap.Event)
}

// Recorder makes a Program from a test program's output and the kernel's complaints. Several goroutines may call its
// methods, because output and complaints arrive on different goroutines.
type Recorder struct {
	mu     sync.Mutex
	opts   Options
	parser *ktap.Parser
	began  time.Time
	since  time.Time // when the running case began: at the start, at the plan, or at the end of the case before
	due    int       // number of the running or next case
	prog   Program
	number []int // numbers of prog.Cases
	splats []int // for each of prog.Splats, the field due when the complaint came
}

// NewRecorder makes a Recorder for a program that begins now.
func NewRecorder(opts Options) *Recorder {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	now := opts.Now()
	r := &Recorder{opts: opts, began: now, since: now, due: 1,
		prog: Program{Name: opts.Name, Column: opts.Column, Only: opts.Only, Cases: []Case{}}}
	base := path.Base(opts.Name)
	r.parser = ktap.New(ktap.Options{Program: strings.TrimSuffix(base, path.Ext(base)), Names: opts.Cases}, r.event)
	return r
}

// Write takes the program's output; it returns no error.
func (r *Recorder) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.parser.Write(b)
}

// Complaint adds a complaint of the kernel to the running or next case, or to the program if this case gets no result.
// The console may be late: then the complaint may be about the case before. After the first splat.MaxSplats complaints
// Complaint only counts them.
func (r *Recorder) Complaint(s splat.Splat) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.prog.Splats) == splat.MaxSplats {
		r.prog.SplatsLeftOut++
		return
	}
	r.prog.Splats = append(r.prog.Splats, Splat{Splat: s})
	r.splats = append(r.splats, r.due)
}

// The caller holds mu.
func (r *Recorder) event(e ktap.Event) {
	switch e.Kind {
	case ktap.Planned:
		r.since = r.opts.Now()
	case ktap.Begun:
		r.due = e.Case.Number
	case ktap.Ended:
		now := r.opts.Now()
		c := Case{Name: e.Case.Name, Result: e.Case.Result, Reason: e.Case.Reason, Seconds: seconds(now.Sub(r.since)),
			Diagnostics: e.Case.Diagnostics, Dropped: e.Case.Dropped}
		for i := range e.Case.Subtests {
			c.Diagnostics = append(c.Diagnostics, subtest(&e.Case.Subtests[i])...)
		}
		r.prog.Cases, r.number = append(r.prog.Cases, c), append(r.number, e.Case.Number)
		r.since, r.due = now, e.Case.Number+1
	case ktap.Continued:
		if n := len(r.prog.Cases); n > 0 {
			r.prog.Cases[n-1].Reason += "\n" + e.Line
		}
	}
	if r.opts.Event != nil {
		r.opts.Event(e)
	}
}

func subtest(s *ktap.Case) []string {
	line := fmt.Sprintf("subtest %d, %s: %s", s.Number, s.Name, s.Result)
	if s.Reason != "" {
		line += ": " + s.Reason
	}
	list := append([]string{line}, s.Diagnostics...)
	for i := range s.Subtests {
		list = append(list, subtest(&s.Subtests[i])...)
	}
	return list
}

func seconds(d time.Duration) float64 { return d.Round(time.Millisecond).Seconds() }

// End returns the results of the program, which ended with exit. The parser's troubles (ktap.Summary), if there are
// any, are a case ktap.Whole with the result error. Call End once, after the last output and complaint.
func (r *Recorder) End(exit ktap.Exit) Program {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.parser.End(exit)
	p := &r.prog
	p.Planned, p.Diagnostics = s.Planned, s.Diagnostics
	p.Seconds = seconds(r.opts.Now().Sub(r.began))
	if exit != (ktap.Exit{}) {
		p.Exit = exit.String()
	}
	for _, c := range s.NotRun {
		p.NotRun = append(p.NotRun, cmp.Or(c.Name, fmt.Sprintf("#%d", c.Number)))
	}
	for i, number := range r.splats {
		p.Splats[i].Case = ktap.Whole
		for j, n := range r.number {
			if n == number && n > 0 {
				p.Splats[i].Case = p.Cases[j].Name
			}
		}
	}
	if len(s.Troubles) > 0 {
		p.Cases = append(p.Cases, Case{Name: ktap.Whole, Result: ktap.Error, Reason: strings.Join(s.Troubles, "\n")})
	}
	return *p
}

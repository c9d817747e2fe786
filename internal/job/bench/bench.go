package bench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"time"

	"vnic.dev/vnic/internal/undo"
)

// Units of measurements.
const (
	GBps    = "GB/s"     // 10^9 bytes a second; more is better
	NsFrame = "ns/frame" // less is better
)

// Measurement is a row of the table.
type Measurement struct {
	Name      string
	Unit      string
	About     string // what is measured
	Yardstick string // what ours is compared with; "": nothing
	open      openFunc
	find      func() (note string) // returns why the row cannot be measured; "", or a nil find: it can
}

// openFunc sets up a rig; the caller runs r.undo, also after an error.
type openFunc func(ctx context.Context, log *slog.Logger, r *rig) error

// runFunc moves data for about d, and returns how much it moved, and in what time: for some rows processor time.
type runFunc func(ctx context.Context, d time.Duration) (work, error)

// rig is a measurement that is set up. One goroutine at a time may call its functions.
type rig struct {
	ours, yardstick runFunc
	counted         func() uint64 // total payload bytes of ours, counted outside of the measuring loop; may be nil
	atLeast         bool          // counted may also include other bytes
	check           func() error  // compares, after a run of ours, some of the bytes; may be nil
	undo            undo.Stack
}

type work struct {
	frames uint64
	bytes  uint64
	spent  time.Duration
}

func (w work) value(unit string) float64 {
	if unit == NsFrame {
		return float64(w.spent.Nanoseconds()) / float64(w.frames)
	}
	return float64(w.bytes) / float64(w.spent.Nanoseconds())
}

// Options select measurements, and set the number and the length of runs.
type Options struct {
	Only  []string // names of measurements, or their first words; nil: all
	Pairs int      // pairs of a run of ours and one of the yardstick
	Time  time.Duration
	Quick bool
	Log   *slog.Logger // nil: none
	// Do calls Progress before each measurement, Model before each run of its cases; nil: none.
	Progress func(name string, done, total int)

	all  []Measurement // tests set it; nil: All
	cold int           // tests set it: bytes through which copies of Model go; 0: modelMemory
}

const (
	MinPairs = 6 // fewer pairs have no interval of 95 %
	MaxPairs = 1000
	MinTime  = time.Millisecond
	MaxTime  = time.Minute
)

// Defaults returns the default options.
func Defaults() Options { return Options{Pairs: 15, Time: 200 * time.Millisecond} }

// QuickOptions returns the options of --quick: fewer and shorter runs.
func QuickOptions() Options { return Options{Pairs: 7, Time: 70 * time.Millisecond, Quick: true} }

// Check returns an error that names the wrong flag; nil: the options are valid.
func (o *Options) Check() error {
	switch {
	case o.Pairs < MinPairs || o.Pairs > MaxPairs:
		return fmt.Errorf("--pairs %d: %d to %d (fewer have no interval of 95 %%)", o.Pairs, MinPairs, MaxPairs)
	case o.Time < MinTime || o.Time > MaxTime:
		return fmt.Errorf("--time %v: %v to %v", o.Time, MinTime, MaxTime)
	}
	_, err := o.chosen()
	return err
}

func (o *Options) chosen() ([]Measurement, error) {
	all := o.all
	if all == nil {
		all = All()
	}
	if o.Only == nil {
		return all, nil
	}
	for _, name := range o.Only {
		if name == "" {
			return nil, errors.New("--only: a name is empty: see 'vnic bench --list'")
		}
		if !slices.ContainsFunc(all, func(m Measurement) bool { return m.matches(name) }) {
			return nil, fmt.Errorf("--only %s: no such measurement: see 'vnic bench --list'", name)
		}
	}
	unwanted := func(m Measurement) bool { return !slices.ContainsFunc(o.Only, m.matches) }
	return slices.DeleteFunc(slices.Clone(all), unwanted), nil
}

// Names lists the measurements' names, and their first words, which select all measurements of a kind.
func Names() (names []string) {
	for _, m := range All() {
		if first, _, _ := strings.Cut(m.Name, "-"); !slices.Contains(names, first) {
			names = append(names, first)
		}
		if !slices.Contains(names, m.Name) {
			names = append(names, m.Name)
		}
	}
	return names
}

// matches reports whether a name selects the measurement, as "ring" or "ring-64" select "ring-64".
func (m *Measurement) matches(name string) bool {
	return m.Name == name || strings.HasPrefix(m.Name, name+"-")
}

// Do makes the measurements that o.Only selects, one after the other. With an error of a measurement the report has the
// earlier rows.
func Do(ctx context.Context, o Options) (*Report, error) {
	list, err := o.chosen()
	if err != nil {
		return nil, err
	}
	rep := &Report{Schema: 1, Pairs: o.Pairs, RunSeconds: o.Time.Seconds(), Quick: o.Quick, CPUs: runtime.NumCPU(),
		Arch: runtime.GOOS + "/" + runtime.GOARCH, Go: runtime.Version(), Rows: []Row{}}
	for i, m := range list {
		if o.Progress != nil {
			o.Progress(m.Name, i, len(list))
		}
		row, err := m.measure(ctx, &o)
		if err != nil {
			return rep, fmt.Errorf("%s: %w", m.Name, err)
		}
		rep.Rows = append(rep.Rows, row)
	}
	return rep, nil
}

// compare returns an error unless counted has grown since before by the bytes that a run claims, or with atLeast by at
// least as many. It waits up to a second for this growth.
func (r *rig) compare(before, claimed uint64) error {
	var n uint64
	for deadline := time.Now().Add(time.Second); ; runtime.Gosched() {
		if n = r.counted() - before; n == claimed || n > claimed && r.atLeast {
			return nil
		}
		if n > claimed || time.Now().After(deadline) {
			return fmt.Errorf("a run claims %d bytes, and the counters saw %d", claimed, n)
		}
	}
}

func (m *Measurement) measure(ctx context.Context, o *Options) (row Row, err error) {
	row = Row{Name: m.Name, Unit: m.Unit, About: m.About, Yardstick: m.Yardstick}
	if m.find != nil {
		if row.Note = m.find(); row.Note != "" {
			return row, nil
		}
	}
	r := new(rig)
	defer func() { err = errors.Join(err, r.undo.All()) }()
	if err := m.open(ctx, o.Log, r); err != nil {
		return row, err
	}
	var ours, yard, ratio, again []float64
	run := func(f runFunc, d time.Duration) (v float64) {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return 0
		}
		runtime.GC()
		w, e := f(ctx, d)
		if e == nil && (w.frames == 0 || w.bytes == 0 || w.spent <= 0) {
			e = fmt.Errorf("a run moved %d frames and %d bytes in %v", w.frames, w.bytes, w.spent)
		}
		err = e
		return w.value(m.Unit)
	}
	counted := func(ctx context.Context, d time.Duration) (work, error) {
		var before uint64
		if r.counted != nil {
			before = r.counted()
		}
		w, err := r.ours(ctx, d)
		if err != nil {
			return w, err
		}
		if r.counted != nil {
			if err := r.compare(before, w.bytes); err != nil {
				return w, err
			}
		}
		if r.check != nil {
			err = r.check()
		}
		row.Bytes += w.bytes
		return w, err
	}
	run(counted, o.Time)
	if r.yardstick != nil {
		run(r.yardstick, o.Time)
	}
	row.Bytes = 0
	for a := run(counted, o.Time); len(ours) < o.Pairs && err == nil; {
		ours = append(ours, a)
		if r.yardstick != nil {
			y := run(r.yardstick, o.Time)
			yard, ratio = append(yard, y), append(ratio, a/y)
		}
		next := run(counted, o.Time)
		again = append(again, next/a)
		a = next
	}
	if err != nil {
		return row, err
	}
	row.Measured = true
	row.Ours, row.AA = summarize(ours), summarize(again)
	if r.yardstick != nil {
		row.Yard, row.Ratio = summarize(yard), summarize(ratio)
	}
	return row, nil
}

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
	Yardstick string // what ours is compared with; "": the row is a yardstick itself
	open      openFunc
	find      func() (note string) // nil, or returns why the row cannot be measured; "": it can
}

// openFunc sets up a rig. The caller releases it by r.undo, also after an error.
type openFunc func(ctx context.Context, log *slog.Logger, r *rig) error

// runFunc moves data for about d.
type runFunc func(ctx context.Context, d time.Duration) (work, error)

// rig is a measurement that is set up. One goroutine at a time calls its functions.
type rig struct {
	ours, yardstick runFunc
	counted         func() uint64 // total payload bytes by counters outside of the measuring loop; nil: check is used
	atLeast         bool          // counted may also include retransmissions, and traffic that is not ours
	check           func() error  // returns an error unless the bytes that ours moved have arrived; nil: counted is used
	undo            undo.Stack    // releases what was set up
}

// work is what one run has moved, and how long it took.
type work struct {
	frames uint64
	bytes  uint64 // bytes of payload
	spent  time.Duration
}

// value returns the throughput or the cost in a measurement's unit.
func (w work) value(unit string) float64 {
	if unit == NsFrame {
		return float64(w.spent.Nanoseconds()) / float64(w.frames)
	}
	return float64(w.bytes) / float64(w.spent.Nanoseconds())
}

// Options say which measurements Do makes, and how long a run takes.
type Options struct {
	Only  []string // names of measurements; nil: all
	Pairs int      // number of pairs of a run of ours and a run of the yardstick
	Time  time.Duration
	Quick bool         // goes into the report
	Log   *slog.Logger // log of the measured networks; nil: none
	// Do calls Progress before each measurement, Model before each run of its cases; it may be nil.
	Progress func(name string, done, total int)

	all  []Measurement // the measurements, which tests change; nil: All
	cold int           // bytes through which copies of Model go, set by tests; 0: modelMemory
}

// Bounds of the options.
const (
	MinPairs = 6 // fewer pairs have no interval of 95 %
	MaxPairs = 1000
	MinTime  = time.Millisecond
	MaxTime  = time.Minute
)

// Defaults returns the options of a measurement whose results are to be published.
func Defaults() Options { return Options{Pairs: 15, Time: 200 * time.Millisecond} }

// QuickOptions returns the options of --quick: fewer and shorter runs than Defaults.
func QuickOptions() Options { return Options{Pairs: 7, Time: 70 * time.Millisecond, Quick: true} }

// Check returns an error that names the wrong flag, if an option is wrong.
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

// chosen returns the measurements that the options name, in the order of the table.
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

// Names lists the names of all measurements, and their first words, which select all measurements of that kind.
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

// matches reports whether a name selects the measurement: its full name, or its first words, as "ring" for "ring-64".
func (m *Measurement) matches(name string) bool {
	return m.Name == name || strings.HasPrefix(m.Name, name+"-")
}

// Do makes the chosen measurements, one after the other. After an error of a measurement it still
// returns a report, with the rows measured before.
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

// compare returns an error unless the counters grew by the bytes that a run claims or, with atLeast, by more. It waits
// up to a second for the counters: a device may count frames a moment after their receiver has them.
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

// measure makes one measurement.
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
		runtime.GC() // makes a garbage collection during the run less likely
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
	run(counted, o.Time) // warms up: touches pages, learns addresses
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

package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"golang.org/x/perf/benchmath"

	"vnic.dev/vnic/internal/schematest"
	"vnic.dev/vnic/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func tiny(only ...string) Options { return Options{Pairs: MinPairs, Time: MinTime, Only: only} }

func TestEachMeasurementMovesWhatItSays(t *testing.T) {
	testkit.Slow(t)
	for _, m := range All() {
		t.Run(m.Name, func(t *testing.T) {
			testkit.CheckFDs(t)
			if testing.Short() && m.find != nil {
				t.Skip("other programs take seconds to start, and have nothing to do with -race")
			}
			if m.About == "" || m.Unit != GBps && m.Unit != NsFrame {
				t.Errorf("%+v", m)
			}
			o := tiny()
			row, err := m.measure(t.Context(), &o)
			testkit.OK(t, err)
			if m.find != nil && row.Note != "" {
				if row.Measured || row.Ours != nil {
					t.Errorf("not measured (%s), but: %+v", row.Note, row)
				}
				return
			}
			if !row.Measured || row.Bytes == 0 || row.Ours.Median <= 0 || (row.Ratio == nil) != (m.Yardstick == "") {
				t.Errorf("%+v", row)
			}
		})
	}
}

// fake returns a measurement. A run of ours reports as many bytes as the parameter claims, and its counter grows by
// the parameter counts.
func fake(name string, claims, counts uint64) Measurement {
	return Measurement{Name: name, Unit: GBps, About: "nothing", Yardstick: "nothing either",
		open: func(_ context.Context, _ *slog.Logger, r *rig) error {
			var seen uint64
			r.ours = func(context.Context, time.Duration) (work, error) {
				seen += counts
				return work{frames: 1, bytes: claims, spent: time.Microsecond}, nil
			}
			r.counted = func() uint64 { return seen }
			r.yardstick = func(context.Context, time.Duration) (work, error) {
				return work{frames: 1, bytes: 500, spent: time.Microsecond}, nil
			}
			return nil
		}}
}

func TestARunThatCountersDenyFails(t *testing.T) {
	for _, c := range []struct {
		claims, counts uint64
		says           string
	}{
		{1000, 1000, ""},
		{1000, 999, "fake: a run claims 1000 bytes, and the counters saw 999"},
		{1000, 1001, "the counters saw 1001"},
		{0, 0, "fake: a run moved 1 frames and 0 bytes"},
	} {
		o := tiny()
		o.all = []Measurement{fake("fake", c.claims, c.counts)}
		rep, err := Do(t.Context(), o)
		switch {
		case c.says != "":
			testkit.ErrorSays(t, err, c.says)
		case err != nil || len(rep.Rows) != 1 || rep.Rows[0].Bytes != (MinPairs+1)*1000:
			t.Errorf("%v %+v", err, rep)
		default:
			testkit.Equal(t, "ratio", *rep.Rows[0].Ratio, Interval{2, 2, 2})
			testkit.Equal(t, "A/A", *rep.Rows[0].AA, Interval{1, 1, 1})
		}
	}
}

// A plainSide returns an error for a frame that is a byte shorter than it expects, for rounds without frames to move,
// and for a transmit buffer outside of its memory.
func TestPlainLoopIsChecked(t *testing.T) {
	f := &frame{head: make([]byte, 66), payload: bytes.Repeat([]byte{7}, 100)}
	p := testkit.Must(newPlainSide(f, 4))(t)
	defer p.close()
	testkit.OK(t, p.send(3))
	testkit.OK(t, p.rounds(3))
	n, err := p.take()
	testkit.OK(t, err)
	testkit.Equal(t, "frames", n, 3)
	pos := 4 * 64
	if got := p.mem.dst[pos:][:166]; !bytes.Equal(got, append(bytes.Clone(f.head), f.payload...)) {
		t.Errorf("arrived: %x", got)
	}
	p.frame++
	testkit.OK(t, p.send(1))
	testkit.OK(t, p.rounds(1))
	_, err = p.take()
	testkit.ErrorSays(t, err, "a frame of 167 bytes arrived as 166")
	testkit.ErrorSays(t, p.rounds(1), "moved 0 frames of 1")
	le.PutUint64(p.loop.tx.table, 1<<40)
	p.frame--
	testkit.OK(t, p.send(4))
	testkit.ErrorSays(t, p.rounds(4), "not in memory")
}

func TestIntervalsOfKnownSamples(t *testing.T) {
	count := func(n int) (v []float64) {
		for i := range n {
			v = append(v, float64(n-i))
		}
		return v
	}
	// the confidence intervals of the sign test's tables, of 95 % or more
	for _, c := range []struct {
		values []float64
		want   Interval
	}{
		{count(6), Interval{3.5, 1, 6}},
		{count(7), Interval{4, 1, 7}},
		{count(15), Interval{8, 4, 12}},
		{[]float64{5, 5, 5, 5, 5, 5, 5}, Interval{5, 5, 5}},
		{[]float64{1, 1, 1, 1, 1, 1, 1e9}, Interval{1, 1, 1e9}},
	} {
		testkit.Equal(t, "interval", *summarize(c.values), c.want)
	}
}

// An end of benchmath's interval may be one value beside ours, as its interval need not be symmetric, and from 31
// values on is an approximation.
func TestIntervalsComparedWithBenchmath(t *testing.T) {
	for n := MinPairs; n <= MaxPairs; n++ {
		values := make([]float64, n)
		for i := range values {
			values[i] = float64(i)
		}
		ours := summarize(values)
		theirs := benchmath.AssumeNothing.Summary(benchmath.NewSample(values, &benchmath.DefaultThresholds), 1-doubt)
		low, high := theirs.Lo-ours.Low, ours.High-theirs.Hi
		if ours.Median != theirs.Center || min(low, high) < -1 || max(low, high) > 1 || n <= 30 && min(low, high) < 0 {
			t.Fatalf("of %d: %+v, and the reference %+v", n, *ours, theirs)
		}
	}
}

func TestOptionsAreChecked(t *testing.T) {
	good := tiny("worker", "memcpy-hot")
	testkit.OK(t, good.Check())
	list := testkit.Must(good.chosen())(t)
	for _, m := range list {
		if m.Name != "memcpy-hot" && !strings.HasPrefix(m.Name, "worker-") {
			t.Errorf("%s was not asked for", m.Name)
		}
	}
	for says, change := range map[string]func(*Options){
		"--pairs 5: 6 to 1000":                func(o *Options) { o.Pairs = 5 },
		"--pairs 1001":                        func(o *Options) { o.Pairs = 1001 },
		"--time 999µs: 1ms to 1m0s":           func(o *Options) { o.Time = MinTime - time.Microsecond },
		"--time -1s":                          func(o *Options) { o.Time = -time.Second },
		"--only walk: no such measurement":    func(o *Options) { o.Only = []string{"walk"} },
		"--only work: no such measurement":    func(o *Options) { o.Only = []string{"memcpy", "work"} },
		"--only: a name is empty":             func(o *Options) { o.Only = []string{"memcpy", ""} },
		"--only memcpy-: no such measurement": func(o *Options) { o.Only = []string{"memcpy-"} },
	} {
		o := tiny()
		change(&o)
		testkit.ErrorSays(t, o.Check(), says)
	}
	for _, name := range Names() {
		o := tiny(name)
		testkit.OK(t, o.Check())
	}
}

func TestMeasuringEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	o := tiny("memcpy")
	o.Progress = func(name string, done, total int) { cancel() }
	_, err := Do(ctx, o)
	testkit.ErrorIs(t, err, context.Canceled)
}

func sample(t *testing.T) *Report {
	t.Helper()
	o := tiny()
	o.all = []Measurement{fake("fake <&>", 1000, 1000), {Name: "gone", Unit: GBps, About: "x",
		find: func() string { return "not installed" }}}
	alone := fake("alone", 1, 1)
	open := alone.open
	alone.Yardstick, alone.open = "", func(ctx context.Context, log *slog.Logger, r *rig) error {
		err := open(ctx, log, r)
		r.yardstick = nil
		return err
	}
	o.all = append(o.all, alone)
	return testkit.Must(Do(t.Context(), o))(t)
}

func TestSVGIsWellFormed(t *testing.T) {
	for _, rep := range []*Report{sample(t), {Rows: []Row{}}} {
		var b bytes.Buffer
		testkit.OK(t, rep.SVG(&b))
		texts := 0
		for d := xml.NewDecoder(&b); ; {
			tok, err := d.Token()
			if err == io.EOF {
				break
			}
			testkit.OK(t, err)
			if c, ok := tok.(xml.CharData); ok && string(c) == "fake <&>" {
				texts++
			}
		}
		if len(rep.Rows) > 0 && texts != 1 {
			t.Errorf("the row's name is there %d times", texts)
		}
	}
	testkit.ErrorIs(t, sample(t).SVG(failing{}), errNoRoom)
}

var errNoRoom = errors.New("no room")

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errNoRoom }

func TestTableHasARowForEach(t *testing.T) {
	var b strings.Builder
	testkit.OK(t, sample(t).Table(&b))
	for _, want := range []string{"fake <&>", "2.00 - 2.00", "not installed", "alone"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	testkit.ErrorIs(t, sample(t).Table(failing{}), errNoRoom)
}

func TestSchemas(t *testing.T) {
	schematest.Holds(t, "schema.json", "vnic bench --json", &Report{}, "../../..", "internal/job/bench")
	schematest.Holds(t, "model.json", "vnic bench --model --json", &ModelReport{}, "../../..",
		"internal/job/bench")
	checkSchema(t, Schema, sample(t))
}

func checkSchema(t *testing.T, schema string, rep any) {
	t.Helper()
	testkit.OK(t, schematest.Compile(t, schema)(string(testkit.Must(json.Marshal(rep))(t))))
}

package results

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"vnic.dev/vnic/internal/job/selftest/ktap"
	"vnic.dev/vnic/internal/job/selftest/splat"
	"vnic.dev/vnic/internal/testkit"
)

type clock struct{ t time.Time }

func (c *clock) now() time.Time { return c.t }

// record makes a Recorder with a clock. pass advances the clock by d, and then writes output to the Recorder.
func record(opts Options) (r *Recorder, pass func(d time.Duration, output string)) {
	c := &clock{t: time.Unix(1000, 0)}
	opts.Now = c.now
	r = NewRecorder(opts)
	return r, func(d time.Duration, output string) {
		c.t = c.t.Add(d)
		fmt.Fprint(r, output)
	}
}

// Cases have their durations, and a complaint belongs to the running case.
func TestOutputBecomesAProgram(t *testing.T) {
	var kinds []ktap.Kind
	r, pass := record(Options{Name: "hw/demo.py", Column: Unmodified, Only: []string{"*"},
		Event: func(e ktap.Event) { kinds = append(kinds, e.Kind) }})
	pass(2*time.Second, "TAP version 13\n1..3\n")
	pass(time.Second, "# setting up\n")
	pass(500*time.Millisecond, "ok 1 demo.one\n")
	pass(250*time.Millisecond, "# Check failed 1 != 2\n")
	r.Complaint(splat.Splat{Kind: splat.Warning, Title: "WARNING: at f", Lines: []string{"WARNING: at f"}})
	pass(0, "not ok 2 demo.two\n")
	pass(time.Second, "ok 3 demo.three # SKIP first\nsecond\n# Totals: pass:1 fail:1 xfail:0 xpass:0 skip:1 error:0\n")
	got := r.End(ktap.Exit{Status: 1})
	want := Program{Name: "hw/demo.py", Column: Unmodified, Only: []string{"*"}, Planned: 3,
		Cases: []Case{
			{Name: "one", Result: ktap.Pass, Seconds: 1.5, Diagnostics: []string{"setting up"}},
			{Name: "two", Result: ktap.Fail, Seconds: 0.25, Diagnostics: []string{"Check failed 1 != 2"}},
			{Name: "three", Result: ktap.Skip, Seconds: 1, Reason: "first\nsecond"},
		},
		Splats: []Splat{{Case: "two", Splat: splat.Splat{Kind: splat.Warning, Title: "WARNING: at f",
			Lines: []string{"WARNING: at f"}}}},
		Exit: "the program ended with status 1", Seconds: 4.75}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v\nnot\n%+v", got, want)
	}
	if want := []ktap.Kind{ktap.Planned, ktap.Begun, ktap.Ended, ktap.Begun, ktap.Ended, ktap.Begun, ktap.Ended,
		ktap.Continued, ktap.Counted}; !reflect.DeepEqual(kinds, want) {
		t.Errorf("events %v, not %v", kinds, want)
	}
}

// If a machine dies, its running case has the result error, and later cases are in NotRun.
func TestDeadMachineLeavesReasons(t *testing.T) {
	r, pass := record(Options{Name: "stats.py", Column: Unmodified, Cases: []string{"a", "check_down", "c"}})
	pass(0, "TAP version 13\n1..3\nok 1 stats.a\n")
	r.Complaint(splat.Splat{Kind: splat.Oops, Title: "BUG: kernel NULL pointer dereference", Function: "f"})
	p := r.End(ktap.Exit{Lost: "the guest's kernel has panicked"})
	testkit.Equal(t, "cases", len(p.Cases), 2)
	testkit.Equal(t, "the case", p.Cases[1].Name, "check_down")
	testkit.Equal(t, "its result", p.Cases[1].Result, ktap.Error)
	testkit.Equal(t, "its reason", p.Cases[1].Reason, "the guest's kernel has panicked")
	testkit.Equal(t, "not run", strings.Join(p.NotRun, " "), "c")
	testkit.Equal(t, "the oops belongs to", p.Splats[0].Case, "check_down")
}

func TestTroublesAreACase(t *testing.T) {
	for status, want := range map[int]int{0: 1, 1: 2} {
		r, pass := record(Options{Name: "ping.py"})
		pass(0, "TAP version 13\n1..1\nok 1 ping.a\n")
		p := r.End(ktap.Exit{Status: status})
		testkit.Equal(t, fmt.Sprintf("cases at status %d", status), len(p.Cases), want)
		if c := p.Case(ktap.Whole); want == 2 && (c == nil || c.Result != ktap.Error ||
			c.Reason != "the program ended with status 1, though no case failed") {
			t.Errorf("%+v", p)
		}
	}
}

// A complaint after the last case belongs to the program. Complaints after the first MaxSplats are only counted.
func TestComplaintOutsideOfCases(t *testing.T) {
	r, pass := record(Options{Name: "ping.py"})
	pass(0, "TAP version 13\n1..1\nok 1 ping.a\n")
	r.Complaint(splat.Splat{Kind: splat.RefLeak, Title: "unregister_netdevice: waiting for eth0"})
	for range splat.MaxSplats + 1 {
		r.Complaint(splat.Splat{Kind: splat.Warning})
	}
	p := r.End(ktap.Exit{})
	testkit.Equal(t, "it belongs to", p.Splats[0].Case, ktap.Whole)
	testkit.Equal(t, "complaints", len(p.Splats), splat.MaxSplats)
	testkit.Equal(t, "left out", p.SplatsLeftOut, 2)
}

func TestSubtestsAreDiagnostics(t *testing.T) {
	r, pass := record(Options{Name: "nested.py"})
	pass(0, "KTAP version 1\n1..1\n  KTAP version 1\n  1..1\n  # why\n")
	pass(0, "  not ok 1 inner # ERROR no memory\nnot ok 1 outer\n")
	p := r.End(ktap.Exit{Status: 1})
	testkit.Equal(t, "diagnostics", strings.Join(p.Cases[0].Diagnostics, "|"), "subtest 1, inner: error: no memory|why")
}

func TestGoodRun(t *testing.T) {
	good := func() Run {
		return Run{Programs: []Program{{Cases: []Case{{Result: ktap.Pass}, {Result: ktap.Skip}, {Result: ktap.XFail}},
			Devmem: &Devmem{Proved: true}}}}
	}
	if r := good(); !r.Good() {
		t.Errorf("%+v is not good", r)
	}
	for name, spoil := range map[string]func(p *Program){
		"fail":     func(p *Program) { p.Cases[0].Result = ktap.Fail },
		"timeout":  func(p *Program) { p.Cases[0].Result = ktap.Timeout },
		"error":    func(p *Program) { p.Cases[0].Result = ktap.Error },
		"not run":  func(p *Program) { p.NotRun = []string{"x"} },
		"splat":    func(p *Program) { p.Splats = []Splat{{}} },
		"unproved": func(p *Program) { p.Devmem.Proved = false },
	} {
		r := good()
		spoil(&r.Programs[0])
		if r.Good() {
			t.Errorf("a run with %s is good", name)
		}
	}
}

func TestProgramsByNameAndColumn(t *testing.T) {
	r := Run{Programs: []Program{{Name: "gro.py", Column: Unmodified, Cases: []Case{{Name: "a"}, {Name: "b", Seconds: 2}}},
		{Name: "gro.py", Column: Patched}}}
	for i, p := range []*Program{r.Program("gro.py", Unmodified), r.Program("gro.py", Patched)} {
		if p != &r.Programs[i] {
			t.Errorf("program %d: %v", i, p)
		}
		testkit.Equal(t, "suffix", p.Column.Suffix(), []string{"", " (patched)"}[i])
	}
	if r.Program("none", Patched) != nil || r.Programs[0].Case("c") != nil {
		t.Error("there is what is not there")
	}
	testkit.Equal(t, "case", r.Programs[0].Case("b").Seconds, 2.0)
}

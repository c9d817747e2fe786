package expect

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/job/selftest/ktap"
	"vnic.dev/vnic/internal/job/selftest/results"
	"vnic.dev/vnic/internal/job/selftest/splat"
	"vnic.dev/vnic/internal/testkit"
)

func expectations(t *testing.T) *Expectations {
	t.Helper()
	return testkit.Must(Parse("f", []byte(sound), suite(), nil))(t)
}

// matching returns a run with the results that sound expects.
func matching() results.Run {
	cases := func(list ...any) (cases []results.Case) {
		for i := 0; i < len(list); i += 2 {
			cases = append(cases, results.Case{Name: list[i].(string), Result: list[i+1].(ktap.Result)})
		}
		return cases
	}
	return results.Run{Model: "gve", Device: "vnic", Kernel: "7.2.12", Programs: []results.Program{
		{Name: "a.py", Column: results.Unmodified,
			Cases: cases("one", ktap.Pass, "two", ktap.Fail, "test.x_1", ktap.Skip, "test.x_2", ktap.Pass)},
		{Name: "a.py", Column: results.Patched,
			Cases: cases("one", ktap.XFail, "test.x_1", ktap.Fail, "test.x_2", ktap.Fail)},
		{Name: "whole.py", Column: results.Unmodified, Cases: cases(ktap.Whole, ktap.Fail)},
	}}
}

// verdicts lists the verdicts other than AsExpected.
func verdicts(j *Judgement) string {
	var list []string
	for _, p := range j.Programs {
		for _, c := range p.Cases {
			if c.Verdict != AsExpected {
				list = append(list, strings.TrimSpace(fmt.Sprintf("%s: %s %s", c.Case, c.Verdict, c.Class)))
			}
		}
	}
	return strings.Join(list, ", ")
}

// Invariant: selftest: With expectations for its model and kernel a run's exit status is 0 only
// when each judged case has its expected result, or passes.
func TestRunsAreJudged(t *testing.T) {
	x := expectations(t)
	for name, c := range map[string]struct {
		change   func(r *results.Run)
		verdicts string
		status   int
	}{
		"as expected": {func(*results.Run) {}, "", 0},
		"new failure": {func(r *results.Run) { r.Programs[0].Cases[0].Result = ktap.Fail }, "one: new failure ours", 1},
		"new timeout": {func(r *results.Run) { r.Programs[0].Cases[0].Result = ktap.Timeout }, "one: new failure ours", 1},
		"failure of a skip": {func(r *results.Run) { r.Programs[0].Cases[2].Result = ktap.Error },
			"test.x_1: new failure ours", 1},
		"new skip":          {func(r *results.Run) { r.Programs[0].Cases[0].Result = ktap.Skip }, "one: changed ours", 1},
		"timeout, not fail": {func(r *results.Run) { r.Programs[0].Cases[1].Result = ktap.Timeout }, "two: changed ours", 1},
		"skip, not fail":    {func(r *results.Run) { r.Programs[0].Cases[1].Result = ktap.Skip }, "two: changed ours", 1},
		"new pass":          {func(r *results.Run) { r.Programs[0].Cases[1].Result = ktap.Pass }, "two: new pass", 0},
		"missing": {func(r *results.Run) { r.Programs[0].Cases = r.Programs[0].Cases[1:] },
			"one: missing ours", 1},
		"not asked for": {func(r *results.Run) {
			r.Programs[0].Cases, r.Programs[0].Only = r.Programs[0].Cases[1:], []string{"t*"}
		}, "", 0},
		"asked for, missing": {func(r *results.Run) {
			r.Programs[0].Cases, r.Programs[0].Only = nil, []string{"two"}
		}, "two: missing ours", 1},
		"left out, and run": {func(r *results.Run) {
			r.Programs[1].Cases = append(r.Programs[1].Cases, results.Case{Name: "two", Result: ktap.Error})
		}, "two: new failure ours", 1},
		"left out, and passes": {func(r *results.Run) {
			r.Programs[1].Cases = append(r.Programs[1].Cases, results.Case{Name: "two", Result: ktap.Pass})
		}, "two: new pass", 0},
		"not listed, fails": {func(r *results.Run) {
			r.Programs[2].Cases = append(r.Programs[2].Cases, results.Case{Name: "new", Result: ktap.Fail})
		}, "new: new failure ours", 1},
		"not listed, passes": {func(r *results.Run) {
			r.Programs[2].Cases = append(r.Programs[2].Cases, results.Case{Name: "new", Result: ktap.Pass})
		}, "new: new pass", 0},
		"troubles": {func(r *results.Run) {
			r.Programs[0].Cases = append(r.Programs[0].Cases, results.Case{Name: ktap.Whole, Result: ktap.Error})
		}, "(program): new failure ours", 1},
		"no case at all": {func(r *results.Run) { r.Programs[2].Cases = nil }, "(program): missing ours", 1},
		"complaint": {func(r *results.Run) {
			r.Programs[0].Splats = []results.Splat{{Case: "two", Splat: splat.Splat{Kind: splat.Warning, Function: "f"}}}
		}, "two: complaint ours", 1},
		"complaint of a left-out case": {func(r *results.Run) {
			r.Programs[1].Splats = []results.Splat{{Case: "two", Splat: splat.Splat{Kind: splat.Oops, Function: "f"}}}
		}, "", 0},
		"another complaint of it": {func(r *results.Run) {
			r.Programs[1].Splats = []results.Splat{{Case: "two", Splat: splat.Splat{Kind: splat.Oops, Function: "g"}}}
		}, "two: complaint ours", 1},
		"complaints left out": {func(r *results.Run) { r.Programs[0].SplatsLeftOut = 3 }, "(program): complaint ours", 1},
		"unproved": {func(r *results.Run) { r.Programs[0].Devmem = &results.Devmem{Why: "host bytes"} },
			"(program): unproved ours", 1},
		"proved": {func(r *results.Run) { r.Programs[0].Devmem = &results.Devmem{Proved: true} }, "", 0},
		"a program of which nothing is said, good": {func(r *results.Run) {
			r.Programs = append(r.Programs, results.Program{Name: "psp.py", Column: results.Unmodified,
				Cases: []results.Case{{Name: "z", Result: ktap.Skip}}})
		}, "z: unjudged", 0},
		"a patch that does not apply": {func(r *results.Run) {
			r.Programs[1].Cases, r.Programs[1].Left = nil, []string{"0001-x.patch"}
		}, "", 0},
		"a program of which nothing is said, bad": {func(r *results.Run) {
			r.Programs = append(r.Programs, results.Program{Name: "psp.py", Column: results.Unmodified,
				Cases: []results.Case{{Name: "z", Result: ktap.Fail}}})
		}, "z: unjudged", 1},
	} {
		r := matching()
		c.change(&r)
		j := x.Judge(&r)
		if got := verdicts(j); got != c.verdicts || j.Status() != c.status || !j.Judged {
			t.Errorf("%s: %q, status %d; not %q, %d", name, got, j.Status(), c.verdicts, c.status)
		}
	}
}

// Without expectations for a kernel or model results are new; a device that is not vnic's is not judged.
func TestUnknownIsNotJudged(t *testing.T) {
	for name, c := range map[string]struct {
		model, device, kernel string
		result                ktap.Result
		verdict               Verdict
		status                int
	}{
		"kernel":            {"gve", "vnic", "6.12.1", ktap.Pass, New, 0},
		"kernel, fails":     {"gve", "vnic", "6.12.1", ktap.Fail, New, 0},
		"no kernel":         {"gve", "vnic", "", ktap.Error, New, 0},
		"model":             {"mlx5", "vnic", "7.2.12", ktap.Pass, New, 0},
		"path for model":    {"../models/gve", "vnic", "7.2.12", ktap.Pass, New, 0},
		"QEMU's own":        {"virtio", "qemu", "7.2.12", ktap.Pass, Unjudged, 0},
		"QEMU's own, fails": {"virtio", "qemu", "7.2.12", ktap.Fail, Unjudged, 1},
	} {
		r := results.Run{Model: c.model, Device: c.device, Kernel: c.kernel, Programs: []results.Program{{Name: "queues.py",
			Column: results.Unmodified, Cases: []results.Case{{Name: "get_queues", Result: c.result}}}}}
		j, err := Judge(&r)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if j.Judged || j.Matches || j.Why == "" || j.Status() != c.status ||
			verdicts(j) != "get_queues: "+string(c.verdict) {
			t.Errorf("%s: %+v, status %d", name, j, j.Status())
		}
	}
	for name, c := range map[string]struct {
		change   func(p *results.Program)
		verdicts string
		status   int
	}{
		"a complaint": {func(p *results.Program) {
			p.Splats = []results.Splat{{Case: "a", Splat: splat.Splat{Kind: splat.Oops, Title: "BUG"}}}
		}, "a: new, a: new", 0},
		"unproved": {func(p *results.Program) { p.Devmem = &results.Devmem{Why: "host bytes"} },
			"a: new, (program): unproved ours", 1},
		"a patch that does not apply": {func(p *results.Program) { p.Cases, p.Left = nil, []string{"0001-x.patch"} }, "", 0},
	} {
		r := results.Run{Model: "gve", Device: "vnic", Kernel: "9.1.0", Programs: []results.Program{{Name: "a.py",
			Column: results.Patched, Cases: []results.Case{{Name: "a", Result: ktap.Fail}}}}}
		c.change(&r.Programs[0])
		if j := testkit.Must(Judge(&r))(t); verdicts(j) != c.verdicts || j.Status() != c.status {
			t.Errorf("%s: %q, status %d", name, verdicts(j), j.Status())
		}
	}
	r := results.Run{Model: "gve", Device: "vnic", Kernel: "7.2.12+deb13-cloud-amd64", Programs: []results.Program{{
		Name: "queues.py", Column: results.Unmodified, Only: []string{"get_*"},
		Cases: []results.Case{{Name: "get_queues", Result: ktap.Pass}}}}}
	if j := testkit.Must(Judge(&r))(t); !j.Judged || !j.Matches || j.Status() != 0 {
		t.Errorf("a kernel with expectations: %+v", j)
	}
	if _, err := Of("gve", "6.12"); !errors.Is(err, ErrUnknown) {
		t.Errorf("%v", err)
	}
}

func TestNoteSaysHowItIsKnown(t *testing.T) {
	x, r := expectations(t), matching()
	r.Programs[0].Cases[0].Result = ktap.Fail
	r.Programs[1].Cases[0].Result = ktap.Fail
	j := x.Judge(&r)
	testkit.Equal(t, "of a run", j.Programs[0].Cases[0].Note, "expected was pass")
	testkit.Equal(t, "of the sources", j.Programs[1].Cases[0].Note,
		"expected was xfail, by the sources; no run has shown it")
}

func TestLeftOutCasesAreNamed(t *testing.T) {
	x := testkit.Must(Of("gve", "7.2.12"))(t)
	testkit.Equal(t, "stats.py", strings.Join(x.LeftOut("stats.py", results.Unmodified), " "), "check_down")
	testkit.Equal(t, "csum.py", len(x.LeftOut("hw/csum.py", results.Unmodified)), 0)
	testkit.Equal(t, "no such program", len(x.LeftOut("no.py", results.Unmodified)), 0)
}

// Behind lists cases that pass on QEMU's own NIC and in no run on vnic's, of programs that ran on both.
func TestBehindTheYardstick(t *testing.T) {
	program := func(name string, list ...ktap.Result) results.Program {
		p := results.Program{Name: name, Column: results.Unmodified}
		for i, r := range list {
			p.Cases = append(p.Cases, results.Case{Name: string(rune('a' + i)), Result: r})
		}
		return p
	}
	run := func(list ...results.Program) *results.Run { return &results.Run{Programs: list} }
	theirs := run(program("x.py", ktap.Pass, ktap.Pass, ktap.Fail, ktap.Pass, ktap.Pass), program("y.py", ktap.Pass),
		program("z.py", ktap.Pass), program("slow.py", ktap.Pass))
	ours := run(program("x.py", ktap.Pass, ktap.Fail, ktap.Fail, ktap.XFail), program("y.py", ktap.Fail),
		program("slow.py", ktap.Timeout))
	list := Behind(theirs, []*results.Run{ours})
	testkit.Equal(t, "behind", fmt.Sprint(list), "[{x.py unmodified b fail} {x.py unmodified d xfail} "+
		"{x.py unmodified e } {y.py unmodified a fail} {slow.py unmodified a timeout}]")
	testkit.Equal(t, "a failure is bad", list[0].Bad(), true)
	testkit.Equal(t, "an expected failure is bad", list[1].Bad(), false)
	testkit.Equal(t, "a case without a result is bad", list[2].Bad(), true)
	other := run(program("y.py", ktap.Pass), program("x.py", ktap.Fail, ktap.Skip, ktap.Pass, ktap.Fail, ktap.Fail),
		program("slow.py", ktap.Fail))
	for _, runs := range [][]*results.Run{{ours, other}, {other, ours}} { // the best result counts
		testkit.Equal(t, "behind", fmt.Sprint(Behind(theirs, runs)), "[{x.py unmodified b skip} {x.py unmodified d xfail} "+
			"{x.py unmodified e fail} {slow.py unmodified a fail}]")
	}
}

func TestAskedCases(t *testing.T) {
	for _, c := range []struct {
		name, patterns string
		want           bool
	}{{"a", "", true}, {"a", "b", false}, {"a", "b a", true}, {"test.x_1", "test.*", true},
		{"test.x_1", "test.x_[2-9]", false}, {"test.x_1", "test.x_?", true}, {"a", "[", false}} {
		testkit.Equal(t, c.name+" by "+c.patterns, Asked(c.name, strings.Fields(c.patterns)), c.want)
	}
}

package report

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"vnic.dev/vnic/internal/job/selftest/expect"
	"vnic.dev/vnic/internal/job/selftest/ktap"
	"vnic.dev/vnic/internal/job/selftest/results"
)

// bounds of what is printed about one case
const (
	shownLines = 12 // first lines of the reason, and as many last lines of the diagnostics
	shownTrace = 16 // first lines of a complaint
)

// Table prints a run: a line with the device and versions, a line for each program, the expectations other than pass
// that were met (reasons), the cases that need an explanation (deviations), and the verdict.
func Table(w io.Writer, run *results.Run, j *expect.Judgement) error {
	fmt.Fprintf(w, "%s, kernel %s%s\n\n", device(run), run.Kernel, versions(run))
	if err := programs(w, run, j); err != nil {
		return err
	}
	if err := reasons(w, j); err != nil {
		return err
	}
	deviations(w, run, j)
	return verdict(w, j)
}

func versions(run *results.Run) string {
	s := ""
	for _, name := range slices.Sorted(maps.Keys(run.Versions)) {
		s += fmt.Sprintf(", %s %s", name, run.Versions[name])
	}
	if run.Accel != "" {
		s += ", " + run.Accel
	}
	return s
}

func programs(w io.Writer, run *results.Run, j *expect.Judgement) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(tw, "program\tcolumn\tpass\tfail\tskip\txfail\tseconds\tdevice memory\tresults are\n")
	for i := range run.Programs {
		p := &run.Programs[i]
		c := p.Count()
		if p.Left != nil {
			fmt.Fprintf(tw, "%s\t%s\t%4s\t%4s\t%4s\t%5s\t%7s\t-\t%s\n", p.Name, p.Column, "-", "-", "-", "-", "-", notApplied(p))
			continue
		}
		fmt.Fprintf(tw, "%s\t%s\t%4d\t%4d\t%4d\t%5d\t%7.1f\t%s\t%s\n", p.Name, p.Column, c[ktap.Pass], c.Bad(), c[ktap.Skip],
			c[ktap.XFail], p.Seconds, devmem(p.Devmem), worth(&j.Programs[i]))
	}
	return tw.Flush()
}

func devmem(d *results.Devmem) string {
	switch {
	case d == nil:
		return "-"
	case d.Proved:
		return "proved"
	}
	return "NOT PROVED"
}

var mismatches = []expect.Verdict{expect.NewFailure, expect.Changed, expect.Missing, expect.Complained, expect.Unproved}

func worth(p *expect.ProgramJudgement) string {
	var parts []string
	for _, v := range append(slices.Clip(mismatches), expect.NewPass, expect.New) {
		if n := p.Count(v); n > 0 {
			parts = append(parts, fmt.Sprintf("%s: %d", v, n))
		}
	}
	switch {
	case !p.Judged && p.Count(expect.New) == 0:
		parts = append(parts, "not judged")
	case len(parts) == 0 && p.Matches():
		return "as expected"
	}
	return strings.Join(parts, ", ")
}

// reasons prints the expectations of each program that were met and are not pass: a line for each, with the number of
// cases that met it.
func reasons(w io.Writer, j *expect.Judgement) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	first := true
	for i := range j.Programs {
		p := &j.Programs[i]
		n := make(map[*expect.Entry]int)
		var order []*expect.Entry
		for k := range p.Cases {
			if c := &p.Cases[k]; c.Verdict == expect.AsExpected && c.Result != ktap.Pass {
				if n[c.Expected]++; n[c.Expected] == 1 {
					order = append(order, c.Expected)
				}
			}
		}
		for _, e := range order {
			if first {
				fmt.Fprint(tw, "\nnot passed, as expected\tcases\tresult\tclass\tevidence\twhy\n")
				first = false
			}
			fmt.Fprintf(tw, "%s:%s%s\t%d\t%s\t%s\t%s\t%s\n", p.Name, e.Case, p.Column.Suffix(), n[e], e.Expect,
				cmp.Or(e.Class, "-"), cmp.Or(e.Evidence, "-"), e.Text)
		}
	}
	return tw.Flush()
}

// deviations prints cases that do not match, pass unexpectedly, or fail without an expectation, the kernel's unexpected
// complaints, and programs whose payload is not proved.
func deviations(w io.Writer, run *results.Run, j *expect.Judgement) {
	for i := range j.Programs {
		p := &run.Programs[i]
		for k := range j.Programs[i].Cases {
			c := &j.Programs[i].Cases[k]
			bad := (c.Verdict == expect.Unjudged || c.Verdict == expect.New) && c.Result.Bad()
			if c.Verdict.Matches() && !bad && c.Verdict != expect.NewPass && !c.Complaint() {
				continue
			}
			fmt.Fprintf(w, "\n%s:%s%s: %s", p.Name, c.Case, p.Column.Suffix(), describe(c))
			if c.Class != "" {
				fmt.Fprintf(w, " [%s]", c.Class)
			}
			fmt.Fprintln(w)
			if c.Expected != nil && c.Expected.Text != "" {
				fmt.Fprintf(w, "  expected was: %s\n", reason(c.Expected))
			}
			if c.Complaint() {
				block(w, strings.Split(trace(p, c), "\n"), shownTrace, false)
			} else if r := p.Case(c.Case); r != nil && (bad || !c.Verdict.Matches()) && c.Verdict != expect.Unproved {
				if r.Reason != "" {
					block(w, strings.Split(r.Reason, "\n"), shownLines, false)
				}
				block(w, r.Diagnostics, shownLines, true)
			}
		}
	}
}

// block prints at most n of the lines, without empty ones: the last ones if last is true, else the first ones. If lines
// are left out for n, it prints how many.
func block(w io.Writer, lines []string, n int, last bool) {
	hidden := max(0, len(lines)-n)
	if last && hidden > 0 {
		fmt.Fprintf(w, "  | (%d lines before: --json)\n", hidden)
	}
	if last {
		lines = lines[hidden:]
	} else {
		lines = lines[:len(lines)-hidden]
	}
	for _, l := range lines {
		if l != "" {
			fmt.Fprintf(w, "  | %s\n", l)
		}
	}
	if !last && hidden > 0 {
		fmt.Fprintf(w, "  | (%d lines more: --json)\n", hidden)
	}
}

func verdict(w io.Writer, j *expect.Judgement) error {
	text := "the run matches what is expected"
	switch news, unproved := j.Count(expect.NewPass), j.Count(expect.Unproved); {
	case !j.Judged && unproved > 0:
		text = fmt.Sprintf("%s: its results are new; payload was NOT where it had to be: %d", j.Why, unproved)
	case !j.Judged && j.Count(expect.New) > 0:
		text = j.Why + ": its results are new, and no failures"
	case !j.Judged:
		text = "not judged: " + j.Why
	case !j.Matches:
		n := 0
		for _, v := range mismatches {
			n += j.Count(v)
		}
		text = fmt.Sprintf("the run does NOT match what is expected: %d of it is ours to explain", n)
	case news > 0:
		text += fmt.Sprintf(", but for new passes: %d", news)
	}
	_, err := fmt.Fprintf(w, "\n%s\n", text)
	return err
}

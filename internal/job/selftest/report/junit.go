package report

import (
	"io"
	"strings"

	"vnic.dev/vnic/internal/job/selftest/expect"
	"vnic.dev/vnic/internal/job/selftest/ktap"
	"vnic.dev/vnic/internal/job/selftest/results"
	"vnic.dev/vnic/internal/report/junit"
)

// JUnit writes a run for CI: a suite for each results.Program, with an entry for each case, for each unexpected
// complaint of the kernel, and for payload that is not proved. An entry is a failure or an error if its verdict does
// not match (expect.Verdict.Matches), or if it is a case that failed and is Unjudged. Other entries that do not pass
// are skipped, with the reason, as is the only entry of a program whose patches do not apply.
func JUnit(w io.Writer, run *results.Run, j *expect.Judgement) error {
	all := junit.Suites{Name: "vnic selftest: " + device(run)}
	total := 0.0
	for i := range run.Programs {
		p := &run.Programs[i]
		all.Add(junitSuite(run, p, &j.Programs[i]))
		total += p.Seconds
	}
	all.Time = junit.Seconds(total)
	return all.Write(w)
}

func junitSuite(run *results.Run, p *results.Program, j *expect.ProgramJudgement) junit.Suite {
	s := junit.Suite{Name: p.Name + p.Column.Suffix(), Time: junit.Seconds(p.Seconds),
		SystemOut: strings.Join(p.Diagnostics, "\n")}
	s.Properties = []junit.Property{{Name: "model", Value: run.Model}, {Name: "device", Value: run.Device},
		{Name: "kernel", Value: run.Kernel}, {Name: "column", Value: string(p.Column)}}
	class := strings.NewReplacer("/", ".", ".py", "").Replace(p.Name) // Jenkins: text before the last dot is a package
	if p.Left != nil {
		s.Cases = append(s.Cases, junit.Case{Name: ktap.Whole, Class: class, Time: junit.Seconds(0),
			Skipped: &junit.Message{Message: notApplied(p)}})
	}
	for i := range j.Cases {
		c := &j.Cases[i]
		t := junit.Case{Name: c.Case, Class: class, Time: junit.Seconds(0)}
		switch {
		case c.Verdict == expect.Missing:
			t.Error = &junit.Message{Message: describe(c), Type: string(c.Verdict)}
		case c.Complaint() && c.Verdict == expect.New:
			t.Name += ": kernel"
			t.Skipped, t.SystemOut = &junit.Message{Message: describe(c)}, trace(p, c)
		case c.Complaint():
			t.Name += ": kernel" // the running case may have an entry of its own
			t.Error = &junit.Message{Message: c.Note, Type: string(c.Verdict), Text: trace(p, c)}
		case c.Verdict == expect.Unproved:
			t.Name = "payload in device memory"
			t.Failure = &junit.Message{Message: c.Note, Type: string(c.Verdict)}
		default:
			junitCase(&t, p.Case(c.Case), c)
		}
		s.Cases = append(s.Cases, t)
	}
	return s
}

func junitCase(t *junit.Case, c *results.Case, j *expect.Judged) {
	t.Time = junit.Seconds(c.Seconds)
	text := strings.Join(c.Diagnostics, "\n")
	switch {
	case !j.Verdict.Matches() || j.Verdict == expect.Unjudged && c.Result.Bad():
		m := &junit.Message{Message: describe(j), Type: string(c.Result), Text: text}
		if first, _, _ := strings.Cut(c.Reason, "\n"); first != "" {
			m.Message += ": " + first
		}
		if c.Result == ktap.Error {
			t.Error = m
		} else {
			t.Failure = m
		}
	case c.Result == ktap.Pass:
		t.SystemOut = text
	default:
		why := describe(j)
		if j.Expected == nil && c.Reason != "" {
			why += ": " + c.Reason
		}
		t.Skipped, t.SystemOut = &junit.Message{Message: why}, text
	}
}

func trace(p *results.Program, j *expect.Judged) string {
	for i := range p.Splats {
		s := &p.Splats[i]
		if s.Case == j.Case && strings.HasPrefix(j.Note, s.Title) {
			return strings.Join(s.Lines, "\n")
		}
	}
	return ""
}

package expect

import (
	"errors"
	"fmt"
	"slices"

	"vnic.dev/vnic/internal/job/selftest/ktap"
	"vnic.dev/vnic/internal/job/selftest/results"
)

// Verdict is how a case's result relates to the expected one, or is about a complaint of the kernel or about payload.
type Verdict string

// Verdicts.
const (
	AsExpected Verdict = "as expected"
	NewPass    Verdict = "new pass"    // it passes unexpectedly
	NewFailure Verdict = "new failure" // it fails unexpectedly
	Changed    Verdict = "changed"     // it differs otherwise, as a skip instead of a pass
	Missing    Verdict = "missing"     // it has no result
	Complained Verdict = "complaint"   // the kernel complained unexpectedly
	Unproved   Verdict = "unproved"    // cases passed, but the host's counters show no payload in device memory
	New        Verdict = "new"         // no expectations for these kernels, or this model
	Unjudged   Verdict = "unjudged"    // no expectations for the program in this column, or a NIC of QEMU's
)

// Matches reports whether a run with this verdict can match the expectations.
func (v Verdict) Matches() bool { return v == AsExpected || v == NewPass || v == New || v == Unjudged }

// Judged is a case, a complaint of the kernel, or payload that was not proved, with its verdict.
type Judged struct {
	Case    string      `json:"case"`
	Verdict Verdict     `json:"verdict"`
	Result  ktap.Result `json:"result,omitempty"` // "": no result
	// Class is the expected reason; none for a new pass; else, for a result that does not match, Ours.
	Class Class `json:"class,omitempty"`
	// Expected is the entry that applies to the case; null: there is none.
	Expected *Entry `json:"expected,omitempty"`
	Note     string `json:"note,omitempty"` // explanation of the verdict
}

// Complaint reports whether j is about complaints of the kernel.
func (j *Judged) Complaint() bool {
	return j.Verdict == Complained || j.Verdict == New && j.Result == ""
}

// ProgramJudgement has the verdicts of a program.
type ProgramJudgement struct {
	Name   string         `json:"name"`
	Column results.Column `json:"column"`
	Judged bool           `json:"judged"` // false: there are no expectations for it in this column, or it did not run
	Cases  []Judged       `json:"cases"`
}

// Judgement has the verdicts of a run.
type Judgement struct {
	Judged bool `json:"judged"` // false: there are no expectations for this device and kernel, or for its programs
	// Why says why there is no judgement.
	Why string `json:"why,omitempty"`
	// Matches is true if every judged case has the expected result, or passes, and there is neither an
	// unexpected complaint nor, in a judged program, payload that was not proved; an unjudged run has false.
	Matches  bool               `json:"matches"`
	Programs []ProgramJudgement `json:"programs"`
	good     bool               // false: the exit status is 1
}

// Status returns the exit status of `vnic selftest` after a run without error: 0 or 1.
func (j *Judgement) Status() int {
	if (j.Matches || !j.Judged) && j.good {
		return 0
	}
	return 1
}

// Count returns the number of entries with this verdict in the Cases of all programs.
func (j *Judgement) Count(v Verdict) (n int) {
	for i := range j.Programs {
		n += j.Programs[i].Count(v)
	}
	return n
}

// Count returns the number of entries of p.Cases with this verdict.
func (p *ProgramJudgement) Count(v Verdict) (n int) {
	for i := range p.Cases {
		if p.Cases[i].Verdict == v {
			n++
		}
	}
	return n
}

// Matches reports whether the verdicts of all entries of p.Cases let a run match.
func (p *ProgramJudgement) Matches() bool {
	return !slices.ContainsFunc(p.Cases, func(c Judged) bool { return !c.Verdict.Matches() })
}

// Judge compares a run with the expectations for its model and kernel. Without any, the results are New; the results of
// a run on a NIC of QEMU's are not judged.
func Judge(run *results.Run) (*Judgement, error) {
	if run.Device != "vnic" {
		j := &Judgement{Why: fmt.Sprintf("%v of %s of %s: it is what vnic is compared with", ErrUnknown, run.Model,
			run.Device), good: run.Good()}
		for i := range run.Programs {
			j.Programs = append(j.Programs, notJudged(&run.Programs[i]))
		}
		return j, nil
	}
	x, err := Of(run.Model, run.Kernel)
	switch {
	case errors.Is(err, ErrUnknown):
		return allNew(run, err.Error()), nil
	case err != nil:
		return nil, err
	}
	return x.Judge(run), nil
}

// Judge compares a run with x.
func (x *Expectations) Judge(run *results.Run) *Judgement {
	j := &Judgement{Matches: true, good: true}
	for i := range run.Programs {
		p := x.program(&run.Programs[i])
		j.Programs = append(j.Programs, p)
		j.Judged = j.Judged || p.Judged
		j.good = j.good && (p.Judged || run.Programs[i].Good())
		j.Matches = j.Matches && p.Matches()
	}
	if !j.Judged {
		j.Matches, j.Why = false, "nothing is written down of any program of this run"
	}
	return j
}

func (x *Expectations) program(run *results.Program) ProgramJudgement {
	j := ProgramJudgement{Name: run.Name, Column: run.Column, Judged: true, Cases: []Judged{}}
	p, ok := x.File.Programs[run.Name][run.Column]
	if !ok || run.Left != nil {
		return notJudged(run)
	}
	for i := range run.Cases {
		j.Cases = append(j.Cases, p.judge(&run.Cases[i]))
	}
	for _, name := range x.Suite.Programs[run.Name] {
		e := p.entry(name)
		if run.Case(name) != nil || e == nil || e.Expect == LeftOut || !Asked(name, run.Only) {
			continue // e is nil: the program is expected to end before its first case
		}
		j.Cases = append(j.Cases, Judged{Case: name, Verdict: Missing, Class: Ours, Expected: e, Note: "it has no result"})
	}
	if e := p.entry(ktap.Whole); e != nil && run.Case(ktap.Whole) == nil && p.wholeOnly() && len(run.Cases) == 0 {
		j.Cases = append(j.Cases, Judged{Case: ktap.Whole, Verdict: Missing, Class: Ours, Expected: e,
			Note: "the program has no result"})
	}
	for i := range run.Splats {
		s := &run.Splats[i]
		if e := p.entry(s.Case); e != nil && e.Splat != "" && e.Splat == s.Function {
			continue // an expected complaint
		}
		j.Cases = append(j.Cases, complaint(s))
	}
	if n := run.SplatsLeftOut; n > 0 {
		j.Cases = append(j.Cases, Judged{Case: ktap.Whole, Verdict: Complained, Class: Ours,
			Note: fmt.Sprintf("and %d times more", n)})
	}
	if d := run.Devmem; d != nil && !d.Proved {
		j.Cases = append(j.Cases, unproved(d))
	}
	return j
}

func unproved(d *results.Devmem) Judged {
	return Judged{Case: ktap.Whole, Verdict: Unproved, Class: Ours, Note: d.Why}
}

// complaint returns the Judged for an unexpected complaint.
func complaint(s *results.Splat) Judged {
	note := s.Title
	if s.Function != "" {
		note = fmt.Sprintf("%s (in %s)", note, s.Function)
	}
	return Judged{Case: s.Case, Verdict: Complained, Class: Ours, Note: note}
}

// judge compares a case with its entry.
func (p *Program) judge(c *results.Case) Judged {
	e := p.entry(c.Name)
	j := Judged{Case: c.Name, Result: c.Result, Expected: e, Class: Ours}
	switch {
	case e != nil && e.Expect == Expected(c.Result):
		j.Verdict, j.Class = AsExpected, e.Class
	case c.Result == ktap.Pass:
		j.Verdict, j.Class = NewPass, ""
	case c.Result.Bad() && (e == nil || !ktap.Result(e.Expect).Bad()):
		j.Verdict = NewFailure
	default:
		j.Verdict = Changed
	}
	switch {
	case e == nil && (c.Name != ktap.Whole || c.Result == ktap.Pass):
		j.Note = "the suite does not list it"
	case e != nil && j.Verdict != AsExpected:
		j.Note = fmt.Sprintf("expected was %s", e.Expect)
		if e.From != FromRun && (e.From == FromSource || p.From != FromRun) {
			j.Note += ", by the sources; no run has shown it"
		}
	}
	return j
}

// allNew judges a run without expectations for its kernel or model: results and complaints are New, and payload that
// is not proved is Unproved.
func allNew(run *results.Run, why string) *Judgement {
	j := &Judgement{Why: why, good: true}
	for i := range run.Programs {
		p := notJudged(&run.Programs[i])
		for k := range p.Cases {
			p.Cases[k].Verdict, p.Cases[k].Class = New, ""
		}
		if d := run.Programs[i].Devmem; d != nil && !d.Proved {
			p.Cases = append(p.Cases, unproved(d))
			j.good = false
		}
		j.Programs = append(j.Programs, p)
	}
	return j
}

func notJudged(run *results.Program) ProgramJudgement {
	j := ProgramJudgement{Name: run.Name, Column: run.Column, Cases: []Judged{}}
	for i := range run.Cases {
		j.Cases = append(j.Cases, Judged{Case: run.Cases[i].Name, Verdict: Unjudged, Result: run.Cases[i].Result})
	}
	for i := range run.Splats {
		j.Cases = append(j.Cases, complaint(&run.Splats[i])) // without expectations no complaint is expected
	}
	return j
}

package expect

import (
	"errors"
	"fmt"

	"vnic.dev/vnic/cmd/vnic/internal/selftest/ktap"
	"vnic.dev/vnic/cmd/vnic/internal/selftest/results"
)

// Verdict is what a case's result is in the light of what is expected.
type Verdict string

// Verdicts. All but AsExpected, NewPass, New and Unjudged make a run not match.
const (
	AsExpected Verdict = "as expected"
	NewPass    Verdict = "new pass"    // it passes, and was not expected to: the expectation can go
	NewFailure Verdict = "new failure" // it fails, and was not expected to
	Changed    Verdict = "changed"     // it neither passes nor newly fails, and was expected to do otherwise
	Missing    Verdict = "missing"     // it has no result
	Complained Verdict = "complaint"   // the kernel complained while it ran
	Unproved   Verdict = "unproved"    // the host's counters do not say that payload went to device memory
	New        Verdict = "new"         // nothing is written down of the kernel's series: what is seen is new
	Unjudged   Verdict = "unjudged"    // nothing is written down of it
)

// Matches says whether a run with this verdict can be one that matches.
func (v Verdict) Matches() bool { return v == AsExpected || v == NewPass || v == New || v == Unjudged }

// Judged is one case, or one complaint, in the light of what is expected.
type Judged struct {
	Case    string      `json:"case"`
	Verdict Verdict     `json:"verdict"`
	Result  ktap.Result `json:"result,omitempty"` // "": it has none
	// Class of the reason: of what does not match it is Ours.
	Class Class `json:"class,omitempty"`
	// Expected is the entry that matches the case; null: there is none.
	Expected *Entry `json:"expected,omitempty"`
	Note     string `json:"note,omitempty"` // what else is to be said
}

// Complaint says whether it is about one of the kernel's, whose title its note begins with.
func (j *Judged) Complaint() bool {
	return j.Verdict == Complained || j.Verdict == New && j.Result == ""
}

// ProgramJudgement is what a program's results are worth.
type ProgramJudgement struct {
	Name   string         `json:"name"`
	Column results.Column `json:"column"`
	Judged bool           `json:"judged"` // false: nothing is written down of this program and column
	Cases  []Judged       `json:"cases"`
}

// Judgement is what a run is worth.
type Judgement struct {
	Judged bool `json:"judged"` // false: nothing is written down of this device and kernel
	// Why nothing is.
	Why string `json:"why,omitempty"`
	// Matches says whether every case has the result that is expected, or passes; of an unjudged run it is false.
	Matches  bool               `json:"matches"`
	Programs []ProgramJudgement `json:"programs"`
	good     bool               // whether nothing went wrong in programs that are not judged
}

// Status is the exit status that a run deserves: 0 where it matches. What is new deserves 0, if payload was where it had
// to be: that is vnic's own to prove, with any kernel. Whatever else cannot be judged deserves 0 if nothing in it failed
// at all.
func (j *Judgement) Status() int {
	if (j.Matches || !j.Judged) && j.good {
		return 0
	}
	return 1
}

// Count is how many cases have a verdict.
func (j *Judgement) Count(v Verdict) (n int) {
	for i := range j.Programs {
		n += j.Programs[i].Count(v)
	}
	return n
}

// Count is how many cases have a verdict.
func (p *ProgramJudgement) Count(v Verdict) (n int) {
	for i := range p.Cases {
		if p.Cases[i].Verdict == v {
			n++
		}
	}
	return n
}

// Matches says whether nothing in a program speaks against the run.
func (p *ProgramJudgement) Matches() bool {
	for i := range p.Cases {
		if !p.Cases[i].Verdict.Matches() {
			return false
		}
	}
	return true
}

// Judge compares a run with what is written down of its model and kernel.
func Judge(run *results.Run) (*Judgement, error) {
	if run.Device != "vnic" {
		return unjudged(run, fmt.Sprintf("%v of %s of %s: it is what vnic is compared with", ErrUnknown, run.Model,
			run.Device)), nil
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

// Judge compares a run with expectations.
func (x *Expectations) Judge(run *results.Run) *Judgement {
	j := &Judgement{Judged: true, good: true}
	judged := 0
	for i := range run.Programs {
		p := x.program(&run.Programs[i])
		j.Programs = append(j.Programs, p)
		if p.Judged {
			judged++
		} else {
			j.good = j.good && run.Programs[i].Good()
		}
	}
	j.Matches = true
	for i := range j.Programs {
		j.Matches = j.Matches && j.Programs[i].Matches()
	}
	if judged == 0 {
		j.Judged, j.Matches, j.Why = false, false, "nothing is written down of any program of this run"
	}
	return j
}

func (x *Expectations) program(run *results.Program) ProgramJudgement {
	j := ProgramJudgement{Name: run.Name, Column: run.Column, Cases: []Judged{}}
	p, ok := x.File.Programs[run.Name][run.Column]
	if !ok || run.Left != nil {
		return notJudged(run)
	}
	j.Judged = true
	for i := range run.Cases {
		j.Cases = append(j.Cases, p.judge(&run.Cases[i]))
	}
	for _, name := range x.Suite.Programs[run.Name] {
		e := p.entry(name)
		if run.Case(name) != nil || e == nil || e.Expect == LeftOut || !Asked(name, run.Only) {
			continue // without an entry the program is expected to come to no case
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
			continue // the case's reason is this complaint
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

// complaint judges a complaint that nobody expects.
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
	j := Judged{Case: c.Name, Result: c.Result, Expected: e}
	switch {
	case e != nil && e.Expect == Expected(c.Result):
		j.Verdict, j.Class = AsExpected, e.Class
	case c.Result == ktap.Pass:
		if j.Verdict = NewPass; e == nil {
			j.Note = "the suite does not list it"
		}
	case e == nil && c.Name == ktap.Whole:
		j.Verdict, j.Class = NewFailure, Ours
		if !c.Result.Bad() {
			j.Verdict = Changed
		}
	case e == nil:
		j.Verdict, j.Class, j.Note = NewFailure, Ours, "the suite does not list it"
		if !c.Result.Bad() {
			j.Verdict = Changed
		}
	case c.Result.Bad() && !ktap.Result(e.Expect).Bad():
		j.Verdict, j.Class = NewFailure, Ours
	default:
		j.Verdict, j.Class = Changed, Ours
	}
	if e != nil && j.Verdict != AsExpected {
		j.Note = fmt.Sprintf("expected was %s", e.Expect)
		if e.From != FromRun && (e.From == FromSource || p.From != FromRun) {
			j.Note += ", by the sources; no run has shown it"
		}
	}
	return j
}

// unjudged is the judgement of a run of a device of which nothing is ever written down.
func unjudged(run *results.Run, why string) *Judgement {
	j := &Judgement{Why: why, good: run.Good()}
	for i := range run.Programs {
		j.Programs = append(j.Programs, notJudged(&run.Programs[i]))
	}
	return j
}

// allNew is the judgement of a run with a series of kernels of which nothing is written down yet.
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
		j.Cases = append(j.Cases, complaint(&run.Splats[i])) // that is bad whatever is expected
	}
	return j
}

package expect

import (
	"vnic.dev/vnic/internal/job/selftest/ktap"
	"vnic.dev/vnic/internal/job/selftest/results"
)

// Class is the kind of reason for which a case does not pass.
type Class string

// Classes, each with its kind of evidence.
const (
	Driver Class = "driver" // the driver's fault; evidence: FILE:LINE of that kernel
	Test   Class = "test"   // the test's fault; evidence: a patch of the suite with which it passes, or is xfail
	Setup  Class = "setup"  // the setup's fault; evidence: the change with which it passes
	Kernel Class = "kernel" // the fault of another part of the kernel; evidence: a heading of docs/found.md
	Ours   Class = "ours"   // vnic's fault; only in judgements, without evidence
)

// Expected is the expected result of a case: one of ktap.Results, or LeftOut.
type Expected string

// LeftOut means that the case would end the guest. It is not run, unless the user names cases of its program or gives
// other tests (--source, --tests).
const LeftOut Expected = "left-out"

// Source is where an expectation comes from.
type Source string

const (
	FromRun    Source = "run"    // a run of that kernel
	FromSource Source = "source" // the sources of test and driver; no run yet
)

// File has the expectations for a device model with a series of kernels.
type File struct {
	Model    string                                `yaml:"model"`
	Kernel   string                                `yaml:"kernel"`
	Programs map[string]map[results.Column]Program `yaml:"programs"`
}

// Program has the expectations for a program's cases in a column.
type Program struct {
	// Seen has the counts of a run, as pass/fail/skip or pass/fail/skip/xfail; fail includes timeout and error, and
	// cases left out are not counted. Unless Seen is "", the expected results of all cases must add up to it.
	Seen string `yaml:"seen,omitempty"`
	// From is the source of all entries without a source of their own; "": FromSource.
	From Source `yaml:"from,omitempty"`
	// Cases has the expectations. The first entry whose pattern matches a case counts; each case has one, unless the
	// only entry is the whole program's.
	Cases []Entry `yaml:"cases"`
}

// Entry is an expectation.
type Entry struct {
	// Case is a name of a case, a pattern as for ksft.py's -t, or "(program)".
	Case     string   `yaml:"case" json:"case"`
	Expect   Expected `yaml:"expect" json:"expect"`
	Class    Class    `yaml:"class,omitempty" json:"class,omitempty"`
	Evidence string   `yaml:"evidence,omitempty" json:"evidence,omitempty"`
	Text     string   `yaml:"text,omitempty" json:"text,omitempty"`
	From     Source   `yaml:"from,omitempty" json:"from,omitempty"`
	// Splat is the function in a complaint of the kernel that is expected with the case.
	Splat string `yaml:"splat,omitempty" json:"splat,omitempty"`
}

// Expectations is a File with its Suite, which Parse and ParseSuite check.
type Expectations struct {
	File  *File
	Suite *Suite
}

// entry returns the first expectation for a case; nil: none. Patterns do not match ktap.Whole.
func (p *Program) entry(name string) *Entry {
	for i := range p.Cases {
		if e := &p.Cases[i]; e.Case == name || name != ktap.Whole && matches(e.Case, name) {
			return e
		}
	}
	return nil
}

// wholeOnly reports whether the only expectation is of the program as a whole, which then ends before its first case.
func (p *Program) wholeOnly() bool { return len(p.Cases) == 1 && p.Cases[0].Case == ktap.Whole }

// LeftOut returns a program's cases with the expected result LeftOut in a column, for ksft.py's -T.
func (x *Expectations) LeftOut(program string, column results.Column) (names []string) {
	p, ok := x.File.Programs[program][column]
	if !ok {
		return nil
	}
	for _, name := range x.Suite.Programs[program] {
		if e := p.entry(name); e != nil && e.Expect == LeftOut {
			names = append(names, name)
		}
	}
	return names
}

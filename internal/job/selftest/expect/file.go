package expect

import (
	"vnic.dev/vnic/internal/job/selftest/ktap"
	"vnic.dev/vnic/internal/job/selftest/results"
)

// Class is the class of a reason for which a case does not pass.
type Class string

// Classes. Each wants evidence of its own kind.
const (
	Driver Class = "driver" // the driver: FILE:LINE of that kernel, below drivers/net/ or any other directory
	Test   Class = "test"   // the test: a patch of the suite with which it passes
	Setup  Class = "setup"  // how it is run: the change with which it passes
	Kernel Class = "kernel" // a bug of the kernel's, not the driver's: a heading of docs/found.md
	Ours   Class = "ours"   // vnic: what has no evidence of another class. In no file: it is what a judgement says
)

// Expected is what is expected of a case: one of ktap.Results, or LeftOut.
type Expected string

// LeftOut is expected of a case that is not to be run, as it would end the guest.
const LeftOut Expected = "left-out"

// Source says how it is known what is expected.
type Source string

// Sources.
const (
	FromRun    Source = "run"    // a run of that kernel has shown it
	FromSource Source = "source" // the sources of test and driver say so, and no run did yet
)

// File is what is expected of a device model with a series of kernels.
type File struct {
	Model    string                                `yaml:"model"`
	Kernel   string                                `yaml:"kernel"`
	Programs map[string]map[results.Column]Program `yaml:"programs"`
}

// Program is what is expected of a program's cases in a column.
type Program struct {
	// Seen has the counts of a run, as pass/fail/skip, or pass/fail/skip/xfail; what is expected of all cases adds up to
	// them.
	Seen string `yaml:"seen,omitempty"`
	// From is how it is known of all entries that say nothing else; without it, from the sources.
	From Source `yaml:"from,omitempty"`
	// Cases are expectations. Of several whose pattern matches a case the first one counts; each case has one.
	Cases []Entry `yaml:"cases"`
}

// Entry is an expectation.
type Entry struct {
	// Case is a name, a pattern as ksft.py's -t has it, or "(program)".
	Case     string   `yaml:"case" json:"case"`
	Expect   Expected `yaml:"expect" json:"expect"`
	Class    Class    `yaml:"class,omitempty" json:"class,omitempty"`
	Evidence string   `yaml:"evidence,omitempty" json:"evidence,omitempty"`
	Text     string   `yaml:"text,omitempty" json:"text,omitempty"`
	From     Source   `yaml:"from,omitempty" json:"from,omitempty"`
	// Splat is the function of a complaint of the kernel's that belongs to the case.
	Splat string `yaml:"splat,omitempty" json:"splat,omitempty"`
}

// Expectations is a File with its Suite, both checked.
type Expectations struct {
	File  *File
	Suite *Suite
}

// entry finds what is expected of a case; nil: nothing is.
func (p *Program) entry(name string) *Entry {
	for i := range p.Cases {
		if e := &p.Cases[i]; e.Case == name || name != ktap.Whole && matches(e.Case, name) {
			return e
		}
	}
	return nil
}

// wholeOnly reports whether a program is expected to end before its first case.
func (p *Program) wholeOnly() bool { return len(p.Cases) == 1 && p.Cases[0].Case == ktap.Whole }

// LeftOut are the cases of a program that are not to be run, for ksft.py's -T.
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

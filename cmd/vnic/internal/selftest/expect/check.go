package expect

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"vnic.dev/vnic/cmd/vnic/internal/selftest/ktap"
	"vnic.dev/vnic/cmd/vnic/internal/selftest/results"
)

// sourceLine matches the evidence of class Driver: a file of the kernel's source, and a line
// number.
var sourceLine = regexp.MustCompile(`^[\w.+-]+(/[\w.+-]+)+\.[chS]:[1-9]\d*$`)

// checker collects the errors of an expectations file.
type checker struct {
	x        *Expectations
	headings []string // the headings of docs/found.md; nil: not checked
	errs     []error
}

// check returns all errors of the expectations, joined.
func (x *Expectations) check(headings []string) error {
	c := checker{x: x, headings: headings}
	f := x.File
	if f.Model == "" {
		c.wrong("", "model: there is none: say which device model it is for, as gve")
	}
	if f.Kernel != x.Suite.Kernel {
		c.wrong("", "kernel: %q, but its suite is of %q", f.Kernel, x.Suite.Kernel)
	}
	for _, name := range slices.Sorted(maps.Keys(f.Programs)) {
		cases, ok := x.Suite.Programs[name]
		if !ok {
			c.wrong("", "%s: kernel %s has no such program%s", name, f.Kernel,
				like(name, slices.Sorted(maps.Keys(x.Suite.Programs))))
			continue
		}
		for _, column := range slices.Sorted(maps.Keys(f.Programs[name])) {
			where := fmt.Sprintf("%s, %s", name, column)
			if column != results.Unmodified && column != results.Patched {
				c.wrong(where, "there is no such column: %s and %s are", results.Unmodified, results.Patched)
			}
			p := f.Programs[name][column]
			c.program(where, &p, cases)
		}
		c.patched(name, cases)
	}
	return errors.Join(c.errs...)
}

func (c *checker) wrong(where, format string, args ...any) {
	err := fmt.Errorf(format, args...)
	if where != "" {
		err = fmt.Errorf("%s: %w", where, err)
	}
	c.errs = append(c.errs, err)
}

func (c *checker) program(where string, p *Program, cases []string) {
	if p.From != "" && p.From != FromRun && p.From != FromSource {
		c.wrong(where, "from: %q is neither %s nor %s", p.From, FromRun, FromSource)
	}
	first := make(map[*Entry]int) // for each entry the number of cases that no earlier entry matches
	for _, name := range cases {
		if e := p.entry(name); e != nil {
			first[e]++
		} else if !p.wholeOnly() {
			c.wrong(where, "nothing is expected of case %s: an entry with the case \"*\" at the end covers the rest", name)
		}
	}
	for i := range p.Cases {
		e := &p.Cases[i]
		where := fmt.Sprintf("%s, case %q", where, e.Case)
		if _, err := path.Match(e.Case, ""); err != nil || e.Case == "" {
			c.wrong(where, "it is no pattern: a name, with * ? and [...]")
		} else if first[e] == 0 && e.Case != ktap.Whole {
			c.wrong(where, "it matches no case that no entry before it matches%s", like(e.Case, cases))
		}
		c.entry(where, e)
	}
	c.seen(where, p, cases)
}

// patched checks the cases of class Test in a program: with the patch each must be expected to
// pass, or to fail as the test's author expects.
func (c *checker) patched(name string, cases []string) {
	columns := c.x.File.Programs[name]
	was, has := columns[results.Unmodified], columns[results.Patched]
	where := fmt.Sprintf("%s, %s", name, results.Unmodified)
	for _, one := range slices.Concat(cases, []string{ktap.Whole}) {
		e := was.entry(one)
		if e == nil || e.Class != Test || one == ktap.Whole && e.Case != ktap.Whole {
			continue
		}
		switch with := has.entry(one); {
		case with == nil:
			c.wrong(where, "%s: class %s, but nothing is expected of it with the patch", one, Test)
		case with.Expect != Expected(ktap.Pass) && with.Expect != Expected(ktap.XFail):
			c.wrong(where, "%s: class %s, but with the patch it is %s as well: its class is the one that it has there", one,
				Test, with.Expect)
		}
	}
}

// joined lists results, separated by commas.
func joined(list []ktap.Result) string {
	words := make([]string, len(list))
	for i, r := range list {
		words[i] = string(r)
	}
	return strings.Join(words, ", ")
}

func (c *checker) entry(where string, e *Entry) {
	if !slices.Contains(ktap.Results, ktap.Result(e.Expect)) && e.Expect != LeftOut {
		c.wrong(where, "expect: %q is no result: these are %s, and %s", e.Expect, joined(ktap.Results), LeftOut)
	}
	if e.From != "" && e.From != FromRun && e.From != FromSource {
		c.wrong(where, "from: %q is neither %s nor %s", e.From, FromRun, FromSource)
	}
	if e.Expect == Expected(ktap.Pass) {
		if e.Class != "" || e.Evidence != "" {
			c.wrong(where, "what passes needs neither class nor evidence")
		}
		return
	}
	if strings.TrimSpace(e.Text) == "" {
		c.wrong(where, "text: there is none: say in a sentence why it does not pass")
	}
	evidence := strings.TrimSpace(e.Evidence)
	none := func(want string) {
		c.wrong(where, "evidence: there is none: class %s wants %s", e.Class, want)
	}
	switch e.Class {
	case "":
		if e.Expect == Expected(ktap.XFail) {
			return // the test itself contains the reason
		}
		c.wrong(where, "class: there is none: it is one of %s, %s, %s, %s", Driver, Test, Setup, Kernel)
	case Driver:
		if evidence == "" {
			none("FILE:LINE of kernel " + c.x.File.Kernel)
		} else if !sourceLine.MatchString(evidence) {
			c.wrong(where, "evidence: %q is not FILE:LINE, as drivers/net/virtio_net.c:5800", evidence)
		}
	case Test:
		if evidence == "" {
			none("a patch of the suite")
		} else if _, ok := c.x.Suite.Patches[evidence]; !ok {
			c.wrong(where, "evidence: the suite of kernel %s has no patch %q%s", c.x.File.Kernel, evidence,
				like(evidence, slices.Sorted(maps.Keys(c.x.Suite.Patches))))
		}
	case Setup:
		if evidence == "" {
			none("what is to be changed for it to pass")
		}
	case Kernel:
		if evidence == "" {
			none("a heading of docs/found.md")
		} else if c.headings != nil && !slices.Contains(c.headings, evidence) {
			c.wrong(where, "evidence: docs/found.md has no heading %q%s", evidence, like(evidence, c.headings))
		}
	case Ours:
		c.wrong(where, "class: what is ours is not expected: it fails until it is mended")
	case "flaky":
		c.wrong(where, "class: flaky is none: find out what makes it fail at times")
	default:
		c.wrong(where, "class: %q is none: it is one of %s, %s, %s, %s", e.Class, Driver, Test, Setup, Kernel)
	}
}

// seen checks that the counts of a run, in the file, are the sums of the expected results of the
// cases.
func (c *checker) seen(where string, p *Program, cases []string) {
	if p.Seen == "" {
		if p.From == FromRun {
			c.wrong(where, "seen: there is none: what comes from a run has its counts, as 4/0/0")
		}
		return
	}
	count := make(map[Expected]int)
	for _, name := range cases {
		if e := p.entry(name); e != nil && e.Case != ktap.Whole {
			count[e.Expect]++
		}
	}
	if e := p.entry(ktap.Whole); e != nil {
		count[e.Expect]++
	}
	adds := fmt.Sprintf("%d/%d/%d", count["pass"], count["fail"]+count["timeout"]+count["error"], count["skip"])
	if n := count["xfail"]; n > 0 {
		adds += fmt.Sprintf("/%d", n)
	}
	if adds != p.Seen {
		c.wrong(where, "seen: %s, but what is expected of its cases adds up to %s (pass/fail/skip/xfail)", p.Seen, adds)
	}
}

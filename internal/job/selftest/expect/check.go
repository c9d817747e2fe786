package expect

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"vnic.dev/vnic/internal/job/selftest/ktap"
	"vnic.dev/vnic/internal/job/selftest/results"
)

// sourceLine matches FILE:LINE of the kernel's source, for a .c, .h or .S file in a directory.
var sourceLine = regexp.MustCompile(`^[\w.+-]+(/[\w.+-]+)+\.[chS]:[1-9]\d*$`)

// checker collects the errors in a file of expectations.
type checker struct {
	x        *Expectations
	headings []string // of docs/found.md; nil: not checked
	errs     []error
}

// check returns the errors that it finds in the expectations, joined; nil: none.
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
	c.source(where, p.From)
	first := make(map[*Entry]int) // for how many cases an entry is the first match
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

func (c *checker) source(where string, from Source) {
	if from != "" && from != FromRun && from != FromSource {
		c.wrong(where, "from: %q is neither %s nor %s", from, FromRun, FromSource)
	}
}

// patched adds an error for each case of a program whose entry in the column unmodified has the class Test, unless the
// column patched expects pass or xfail of it.
func (c *checker) patched(name string, cases []string) {
	columns := c.x.File.Programs[name]
	unmodified, patched := columns[results.Unmodified], columns[results.Patched]
	where := fmt.Sprintf("%s, %s", name, results.Unmodified)
	for _, one := range slices.Concat(cases, []string{ktap.Whole}) {
		e := unmodified.entry(one)
		if e == nil || e.Class != Test || one == ktap.Whole && e.Case != ktap.Whole {
			continue
		}
		switch with := patched.entry(one); {
		case with == nil:
			c.wrong(where, "%s: class %s, but nothing is expected of it with the patch", one, Test)
		case with.Expect != Expected(ktap.Pass) && with.Expect != Expected(ktap.XFail):
			c.wrong(where, "%s: class %s, but with the patch it is %s as well: its class is the one that it has there", one,
				Test, with.Expect)
		}
	}
}

func (c *checker) entry(where string, e *Entry) {
	if !slices.Contains(ktap.Results, ktap.Result(e.Expect)) && e.Expect != LeftOut {
		list := strings.ReplaceAll(strings.Trim(fmt.Sprint(ktap.Results), "[]"), " ", ", ")
		c.wrong(where, "expect: %q is no result: these are %s, and %s", e.Expect, list, LeftOut)
	}
	c.source(where, e.From)
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
	wanted, known := map[Class]string{Driver: "FILE:LINE of kernel " + c.x.File.Kernel, Test: "a patch of the suite",
		Setup: "what is to be changed for it to pass", Kernel: "a heading of docs/found.md"}[e.Class]
	_, isPatch := c.x.Suite.Patches[evidence]
	classes := fmt.Sprintf("it is one of %s, %s, %s, %s", Driver, Test, Setup, Kernel)
	switch {
	case e.Class == "" && e.Expect == Expected(ktap.XFail): // the test's author has given the reason
	case e.Class == "":
		c.wrong(where, "class: there is none: %s", classes)
	case e.Class == Ours:
		c.wrong(where, "class: what is ours is not expected: it fails until it is mended")
	case e.Class == "flaky":
		c.wrong(where, "class: flaky is none: find out what makes it fail at times")
	case !known:
		c.wrong(where, "class: %q is none: %s", e.Class, classes)
	case evidence == "":
		c.wrong(where, "evidence: there is none: class %s wants %s", e.Class, wanted)
	case e.Class == Driver && !sourceLine.MatchString(evidence):
		c.wrong(where, "evidence: %q is not FILE:LINE, as drivers/net/virtio_net.c:5800", evidence)
	case e.Class == Test && !isPatch:
		c.wrong(where, "evidence: the suite of kernel %s has no patch %q%s", c.x.File.Kernel, evidence,
			like(evidence, slices.Sorted(maps.Keys(c.x.Suite.Patches))))
	case e.Class == Kernel && c.headings != nil && !slices.Contains(c.headings, evidence):
		c.wrong(where, "evidence: docs/found.md has no heading %q%s", evidence, like(evidence, c.headings))
	}
}

// seen adds an error if p.Seen differs from the counts of the expected results, or is "" although p.From is FromRun.
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

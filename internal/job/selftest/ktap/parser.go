package ktap

import (
	"fmt"
	"slices"
	"strings"
)

// Bounds of the output that a Parser keeps.
const (
	MaxLine        = 4 << 10 // bytes of a line
	MaxCases       = 4096    // cases of a program, with subtests
	MaxDiagnostics = 200     // lines about a case, at each level of nested tests
	MaxKept        = 8 << 20 // bytes of a program's diagnostics and reasons; beyond it only short reasons are kept
	MaxDepth       = 8       // levels of tests, with the outermost; deeper lines are diagnostics
	maxContinued   = 16      // lines of a reason after the first
	maxName        = 256     // bytes of a name, and of a reason when MaxKept is exceeded
	maxTroubles    = 16
)

// Options of a Parser.
type Options struct {
	// Program is the program's name. Names of cases may begin with it, as "ping.test_default_v4".
	Program string
	// Names are the cases' names in the order in which the program lists them with -l; nil: unknown.
	Names []string
}

// Parser parses the output of one program. It is for one goroutine.
type Parser struct {
	opts Options
	emit func(Event)

	cutter  Cutter
	started bool // a line of KTAP has come

	plan      int // cases; -1: no plan
	next      int // number of the running or next case
	begun     bool
	done      map[int]bool // cases with a result, by number
	stored    int          // cases with a result line, with subtests
	kept      int          // kept bytes of diagnostics and reasons
	levels    []level      // of nested tests, the outermost first; never empty
	counts    map[Result]int
	xpass     int
	bad       bool // the outermost level had "not ok"
	totals    *Totals
	continues int // lines that may still belong to the last reason
	bail      string
	stopped   bool // no further case follows
	whole     bool // the plan was "1..0 # SKIP"
	troubles  []string
}

type level struct {
	lines lines
	cases []Case
}

// New makes a Parser, whose Write and End call emit for each event.
func New(opts Options, emit func(Event)) *Parser {
	p := &Parser{opts: opts, emit: emit, plan: -1, next: 1, done: make(map[int]bool), levels: make([]level, 1),
		counts: make(map[Result]int)}
	p.cutter = Cutter{Max: MaxLine, Line: func(line []byte, cut bool) {
		s := strings.TrimRight(Clean(line), " ")
		if cut {
			s += " [...]"
		}
		p.take(s)
	}}
	return p
}

// Write takes a piece of output of any size. It returns no error, and does not keep b.
func (p *Parser) Write(b []byte) (int, error) { return p.cutter.Write(b) }

func (p *Parser) take(line string) {
	body := strings.TrimLeft(line, " ")
	indent := len(line) - len(body)
	depth := indent / 2
	if indent%2 != 0 || depth > len(p.levels) {
		depth = -1 // no test has a line with this indentation (ktap.rst, "Unknown lines")
	}
	if isVersion(body) && depth >= 0 && depth < MaxDepth {
		p.continues, p.started = 0, true
		if p.levels = p.levels[:min(len(p.levels), depth+1)]; depth == len(p.levels) {
			p.levels = append(p.levels, level{})
		}
		return
	}
	if depth >= 0 && depth < len(p.levels) {
		if r, ok := parseResult(body); ok {
			p.continues, p.started = 0, true
			p.result(depth, r)
			return
		}
		if n, skip, ok := parsePlan(body); ok {
			p.continues, p.started = 0, true
			if depth == 0 {
				p.planned(n, skip)
			}
			return
		}
	}
	if depth == 0 {
		if text, ok := strings.CutPrefix(line, "Bail out!"); ok {
			p.continues, p.started = 0, true
			p.bail = strings.TrimSpace(text)
			p.emit(Event{Kind: BailedOut, Line: p.bail})
			return
		}
	}
	p.comment(max(0, min(depth, len(p.levels)-1)), line, body)
}

func (p *Parser) comment(depth int, line, body string) {
	text, marked := strings.CutPrefix(body, "#")
	if !marked {
		// ksft.py prints an exception's text after "# SKIP" or "# XFAIL"; further lines of this text have no "#".
		switch {
		case line == "":
		case p.continues > 0 && p.kept+len(line) <= MaxKept:
			p.continues--
			p.kept += len(line)
			p.emit(Event{Kind: Continued, Line: line})
		default:
			p.keep(depth, line)
		}
		return
	}
	p.continues = 0
	text = strings.TrimPrefix(text, " ")
	if t, ok := parseTotals(text); ok && depth == 0 {
		p.totals, p.begun = &t, false // the totals come after the last case
		p.emit(Event{Kind: Counted, Totals: t})
		return
	}
	p.keep(depth, text)
}

func (p *Parser) keep(depth int, text string) {
	l := &p.levels[depth].lines
	if p.kept+len(text) > MaxKept {
		l.dropped++
		return
	}
	p.kept += len(text) - l.add(text)
}

func (p *Parser) planned(n int, skip string) {
	if p.plan >= 0 {
		p.trouble("a second plan, of %d cases", n)
		return
	}
	if skip != "" {
		p.plan, p.whole = 0, true
		p.emit(Event{Kind: Planned})
		p.emit(Event{Kind: Ended, Case: p.finish(Case{Name: Whole, Result: Skip, Directive: "SKIP", Reason: skip})})
		return
	}
	if n > MaxCases {
		p.trouble("a plan of %d cases: %d are followed", n, MaxCases)
		n = MaxCases
	}
	p.plan = n
	p.emit(Event{Kind: Planned, N: n})
	p.begin()
}

func (p *Parser) begin() {
	for p.done[p.next] {
		p.next++
	}
	if p.begun = p.next <= p.plan && !p.stopped; p.begun {
		p.emit(Event{Kind: Begun, Case: Case{Number: p.next, Name: p.known(p.next)}})
	}
}

// known returns the name that Options.Names has for the case with this number; "": none.
func (p *Parser) known(number int) string {
	if number >= 1 && number <= len(p.opts.Names) {
		return p.opts.Names[number-1]
	}
	return ""
}

// terminated is what ksft.py (_ksft_intr, ksft_run) prints in a case that SIGTERM interrupts. No other case
// follows.
const terminated = "Stopping tests due to KsftTerminate."

// result handles a result line, which ends the nested tests.
func (p *Parser) result(depth int, r resultLine) {
	c := Case{Number: r.number, Name: short(r.name), Result: ofLine(r.ok, r.directive), Directive: r.directive,
		Reason: r.text}
	if p.kept += len(c.Reason); p.kept > MaxKept {
		c.Reason = short(c.Reason)
	}
	if len(p.levels) > depth+1 {
		c.Subtests = p.levels[depth+1].cases
	}
	c.Diagnostics, c.Dropped = p.levels[depth].lines.take()
	if len(p.levels) > depth+1 { // lines after the last nested result are about the parent case
		rest, dropped := p.levels[depth+1].lines.take()
		c.Diagnostics, c.Dropped = append(rest, c.Diagnostics...), c.Dropped+dropped
		p.levels = p.levels[:depth+1]
	}
	p.bad = p.bad || !r.ok && depth == 0
	if p.stored++; p.stored > MaxCases {
		if p.stored == MaxCases+1 {
			p.trouble("more than %d cases: the others are not looked at", MaxCases)
		}
		return
	}
	if depth > 0 {
		p.levels[depth].cases = append(p.levels[depth].cases, c)
		return
	}
	if c.Result == Fail && slices.Contains(c.Diagnostics, terminated) {
		c.Result, p.stopped = Timeout, true
		if c.Reason == "" {
			c.Reason = "the program got SIGTERM"
		}
	}
	for i := range c.Subtests {
		if s := &c.Subtests[i]; s.Result.Bad() && c.Result == Pass { // "the parent test should also fail" (ktap.rst)
			c.Result, c.Reason = Fail, fmt.Sprintf("its subtest %d, %s, has the result %s", s.Number, s.Name, s.Result)
			break
		}
	}
	p.top(c)
}

func (p *Parser) top(c Case) {
	separate := c.Name == p.opts.Program && p.opts.Program != "" // net/lib/py/ynl.py prints it if its library is missing
	switch {
	case separate:
		c.Name = Whole
	case c.Name == "":
		c.Name = fmt.Sprintf("#%d", c.Number)
	case p.opts.Program != "":
		c.Name = strings.TrimPrefix(c.Name, p.opts.Program+".")
	}
	switch {
	case p.done[c.Number]:
		p.trouble("case %d has two results, the second as %s", c.Number, c.Name)
	case c.Number != p.next:
		p.trouble("case %d, %s, came where case %d was due", c.Number, c.Name, p.next)
	case p.plan >= 0 && c.Number > p.plan:
		p.trouble("case %d, %s, is not in the plan of %d", c.Number, c.Name, p.plan)
	}
	if c.Number >= 1 && c.Number <= MaxCases {
		p.done[c.Number] = true
		p.next = c.Number + 1
	}
	p.counts[c.Result]++
	if c.Directive == "XPASS" {
		p.xpass++
	}
	if p.continues = 0; c.Directive == "SKIP" || c.Directive == "XFAIL" {
		p.continues = maxContinued
	}
	p.emit(Event{Kind: Ended, Case: c})
	p.begin()
}

// finish returns c with the diagnostics and nested results since the previous case, and removes these from p.
func (p *Parser) finish(c Case) Case {
	for i := len(p.levels) - 1; i >= 0; i-- {
		l, dropped := p.levels[i].lines.take()
		c.Diagnostics, c.Dropped = append(c.Diagnostics, l...), c.Dropped+dropped
	}
	if len(p.levels) > 1 {
		c.Subtests = p.levels[1].cases
	}
	p.levels = p.levels[:1]
	return c
}

func short(s string) string {
	if len(s) <= maxName {
		return s
	}
	return strings.ToValidUTF8(s[:maxName], "") + " [...]"
}

func (p *Parser) trouble(format string, args ...any) {
	if len(p.troubles) < maxTroubles {
		p.troubles = append(p.troubles, fmt.Sprintf(format, args...))
	}
}

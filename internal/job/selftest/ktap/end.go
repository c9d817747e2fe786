package ktap

import (
	"cmp"
	"fmt"
)

// Exit is how a program ended.
type Exit struct {
	Status   int    // 128 + the signal's number after a signal, as in shells
	TimedOut bool   // killed at its time limit
	Lost     string // why there is no exit status; "": there is one
}

func (e Exit) String() string {
	switch {
	case e.Lost != "":
		return e.Lost
	case e.TimedOut:
		return "the program took too long"
	case e.Status > 128 && e.Status < 128+65:
		return fmt.Sprintf("the program ended by signal %d", e.Status-128)
	}
	return fmt.Sprintf("the program ended with status %d", e.Status)
}

// unfinished returns the result of a case that was running at the program's end.
func (e Exit) unfinished() Result {
	if e.Lost == "" && (e.TimedOut || e.Status == exitTimeout) {
		return Timeout
	}
	return Error
}

// Summary describes the end of a program's output.
type Summary struct {
	Planned int // cases; -1: no plan
	// NotRun are the planned cases without a result: Number, and Name if known.
	NotRun []Case
	Totals *Totals // counted by the program itself; may be nil
	// Troubles are sentences about contradictions between cases, plan, totals and exit status, about a program
	// that bailed out, and about more cases than MaxCases.
	Troubles []string
	// Diagnostics is the output after the last case.
	Diagnostics []string
	Dropped     int // lines that were not kept
}

// End ends the output. It emits the end of the case that was running or, if there was no KTAP, of a case for
// the whole program. Call it once, after the last Write.
func (p *Parser) End(exit Exit) Summary {
	p.cutter.Flush()
	p.continues = 0
	none := !p.started
	switch {
	case none:
		p.emit(Event{Kind: Ended, Case: p.finish(p.wholeCase(exit))})
	case p.begun:
		c := p.finish(Case{Number: p.next, Name: p.known(p.next), Result: exit.unfinished(), Reason: exit.String()})
		if p.bail != "" {
			c.Reason = "the program bailed out: " + p.bail
		}
		c.Name = cmp.Or(c.Name, fmt.Sprintf("#%d", c.Number))
		p.done[c.Number] = true
		p.emit(Event{Kind: Ended, Case: c})
	}
	s := Summary{Planned: p.plan, Totals: p.totals}
	for n := 1; n <= p.plan; n++ {
		if !p.done[n] {
			s.NotRun = append(s.NotRun, Case{Number: n, Name: p.known(n)})
		}
	}
	rest := p.finish(Case{})
	s.Diagnostics, s.Dropped = rest.Diagnostics, rest.Dropped
	if !none {
		p.check(exit)
	}
	s.Troubles = p.troubles
	return s
}

// wholeCase returns the case for a program without KTAP.
func (p *Parser) wholeCase(exit Exit) Case {
	c := Case{Name: Whole, Result: ofStatus(exit.Status), Reason: exit.String()}
	if exit.TimedOut || exit.Lost != "" {
		c.Result = exit.unfinished()
	}
	if c.Result == Pass {
		c.Reason = ""
	}
	return c
}

// check records contradictions between a program's exit, totals and cases.
func (p *Parser) check(exit Exit) {
	if p.bail != "" && !p.begun {
		p.trouble("the program bailed out: %s", p.bail)
	}
	if p.plan < 0 && len(p.done) == 0 {
		p.trouble("neither a plan nor a result: %s", exit)
	}
	switch {
	case p.begun: // the exit decides its result
	case p.stopped && exit.Lost == "": // its result is Timeout
	case exit.Lost != "" || exit.TimedOut:
		p.trouble("after the last case: %s", exit)
	case exit.Status == 0 && p.bad:
		p.trouble("exit status 0, though a case failed")
	case exit.Status != 0 && !p.bad && (exit.Status != exitSkip || p.counts[Skip] == 0 && !p.whole):
		p.trouble("%s, though no case failed", exit)
	}
	lines := Totals{Pass: p.counts[Pass] - p.xpass, Fail: p.counts[Fail] + p.counts[Timeout], XFail: p.counts[XFail],
		XPass: p.xpass, Skip: p.counts[Skip], Error: p.counts[Error]}
	if t := p.totals; t != nil && !p.begun && t.sum() != lines.sum() {
		p.trouble("its totals are %s; its result lines say %s", t.words(), lines.words())
	}
}

package ktap

import (
	"cmp"
	"fmt"
)

// Exit is how a program ended.
type Exit struct {
	Status   int    // exit status; after a signal 128 + its number, as in shells
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

// unfinished returns the result of a case that was running when the program ended so: Timeout or Error.
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
	Totals *Totals // the last ones that the program printed; nil: none
	// Troubles are up to maxTroubles sentences, for example about contradictions between cases, plan, totals and exit
	// status, a program that bailed out between cases, or more cases than MaxCases.
	Troubles []string
	// Diagnostics is the output after the last case.
	Diagnostics []string
	Dropped     int // lines that were not kept
}

// End ends the output. It emits the end of the case that was running, if there was one, or, if there was no KTAP, the
// end of a case for the whole program. Call it once, after the last Write.
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

// check records, as troubles, a program that bailed out between cases or printed neither plan nor result, and
// contradictions between its exit, totals and cases.
func (p *Parser) check(exit Exit) {
	if p.bail != "" && !p.begun {
		p.trouble("the program bailed out: %s", p.bail)
	}
	if p.plan < 0 && len(p.done) == 0 {
		p.trouble("neither a plan nor a result: %s", exit)
	}
	switch {
	case p.begun: // the running case has a result by the exit
	case p.stopped && exit.Lost == "": // the case that SIGTERM ended has the result Timeout
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

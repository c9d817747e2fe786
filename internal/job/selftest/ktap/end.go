package ktap

import (
	"cmp"
	"fmt"
)

// Exit is how a program ended.
type Exit struct {
	Status   int    // its exit status; 128 + the signal, if one ended it, as shells have it
	TimedOut bool   // it was ended, as it took too long
	Lost     string // why there is no exit status, as "the guest's kernel has panicked"; "": there is one
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

// unfinished is the result of a case that an end of this kind interrupts.
func (e Exit) unfinished() Result {
	if e.Lost == "" && (e.TimedOut || e.Status == exitTimeout) {
		return Timeout
	}
	return Error
}

// Summary is a program as a whole.
type Summary struct {
	Planned int // cases; -1: there was no plan
	// NotRun are cases of the plan behind the one with which the program ended: Number, and Name if it is known.
	NotRun []Case
	Totals *Totals // the program's own count; nil: it has none
	// Troubles are sentences about what does not fit together: numbers, plan, totals, exit status. A program with one
	// is not to be relied upon, whatever its cases say.
	Troubles []string
	// Diagnostics is what was printed behind the last case.
	Diagnostics []string
	Dropped     int // lines of it that were not kept
}

// End says that nothing more comes, and how the program ended. It tells of the case that was under way, if one was, and
// of the whole program as a case, if it printed no KTAP. It is called once; Write is not called any more.
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

// wholeCase is a program without KTAP.
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

// check notes where a program's end, count and cases contradict each other.
func (p *Parser) check(exit Exit) {
	if p.bail != "" && !p.begun {
		p.trouble("the program bailed out: %s", p.bail)
	}
	if p.plan < 0 && len(p.done) == 0 {
		p.trouble("neither a plan nor a result: %s", exit)
	}
	switch {
	case p.begun: // told as the result of the case that was under way
	case p.stopped && exit.Lost == "": // told as a timeout of the case that was interrupted
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

package boot

import (
	"fmt"
	"sync"

	"vnic.dev/vnic/internal/limit"
)

// values of --end: when vnic ends the guests
const (
	EndAll          = "all"           // when all programs have ended
	EndFirstFailure = "first-failure" // also when one program has failed
)

type ends struct {
	runner *runner
	mu     sync.Mutex
	first  int // under mu: the first failure's status, with EndFirstFailure; else 0
}

// tell records that a guest's program has ended, and may note it for the user. With EndFirstFailure it calls stop for
// the first program that has failed, and notes nothing after that.
func (e *ends) tell(g *guest, status int, stop func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	alive := &e.runner.alive
	alive.Set(g.name, "")
	if e.first != 0 {
		return
	}
	running := alive.In(limit.Runs)
	if e.runner.opt.Guests > 1 && (status != 0 || len(running) > 0) {
		e.runner.opt.Note("%s has ended: exit status %d%s", g.name, status, e.rest(status, running))
	}
	if e.runner.opt.End == EndFirstFailure && status != 0 {
		e.first = status
		stop()
	}
}

func (e *ends) rest(status int, running []string) string {
	verb := "run"
	if len(running) == 1 {
		verb = "runs"
	}
	switch {
	case len(running) == 0:
		return ""
	case e.runner.opt.End == EndFirstFailure && status != 0:
		return fmt.Sprintf("; --end %s ends %s", EndFirstFailure, limit.And(running))
	}
	return fmt.Sprintf("; %s still %s", limit.And(running), verb)
}

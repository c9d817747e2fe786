package boot

import (
	"fmt"
	"sync"

	"vnic.dev/vnic/internal/limit"
)

// The values of --end: when vnic ends the guests.
const (
	EndAll          = "all"           // when the programs of all guests have ended
	EndFirstFailure = "first-failure" // also when the program of one guest has failed
)

// ends reports the end of each guest's program.
type ends struct {
	runner *runner
	mu     sync.Mutex
	first  int // under mu: the status of the first program that failed, with EndFirstFailure
}

// tell records that a guest's program has ended. With several guests it tells the user, unless this is
// the last program and it succeeded. With EndFirstFailure it calls stop for the first program that
// failed, and ignores the later ones.
func (e *ends) tell(g *guest, status int, stop func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	alive := &e.runner.alive
	alive.Set(g.name, "")
	if e.first != 0 { // another program has failed, and stop was called
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

// rest describes what the other guests do.
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

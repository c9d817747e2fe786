package gpumem

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// idleThread is a thread of SCHED_IDLE until hurry is closed.
type idleThread struct {
	hurry <-chan struct{} // nil: an ordinary thread
	idle  bool
}

// begin sets SCHED_IDLE, or, if that is not permitted, waits for hurry or stop.
func (t *idleThread) begin(stop <-chan struct{}) {
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
	if t.idle = setPolicy(unix.SCHED_IDLE) == nil; t.idle {
		return
	}
	select {
	case <-t.hurry:
	case <-stop:
	}
}

// look makes the thread an ordinary one once hurry is closed.
func (t *idleThread) look() {
	if !t.idle {
		return
	}
	select {
	case <-t.hurry:
		_ = setPolicy(unix.SCHED_NORMAL) // may be refused (sched(7)): then it stays slow
		t.idle = false
	default:
	}
}

// setPolicy keeps the nice value.
func setPolicy(policy uint32) error {
	a, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		return err
	}
	a.Policy = policy
	return unix.SchedSetAttr(0, a, 0)
}

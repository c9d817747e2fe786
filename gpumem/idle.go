package gpumem

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// idleThread makes the thread of a goroutine run with SCHED_IDLE, from begin on until the first look after hurry is
// closed.
type idleThread struct {
	hurry <-chan struct{} // nil: the thread is an ordinary one
	idle  bool
}

// begin sets SCHED_IDLE, or, if that is not permitted, waits until hurry or stop is closed.
func (t *idleThread) begin(stop <-chan struct{}) {
	runtime.LockOSThread() // the thread ends with the goroutine, as it is never unlocked
	if t.idle = setPolicy(unix.SCHED_IDLE) == nil; t.idle {
		return
	}
	select {
	case <-t.hurry:
	case <-stop:
	}
}

// look makes an idle thread an ordinary one if hurry is closed.
func (t *idleThread) look() {
	if !t.idle {
		return
	}
	select {
	case <-t.hurry:
		_ = setPolicy(unix.SCHED_NORMAL) // this may be refused (sched(7)): the thread then stays slow
		t.idle = false
	default:
	}
}

// setPolicy sets the thread's policy, and keeps its nice value.
func setPolicy(policy uint32) error {
	a, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		return err
	}
	a.Policy = policy
	return unix.SchedSetAttr(0, a, 0)
}

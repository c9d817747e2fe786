package gpumem

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// idleThread is a goroutine's thread which the kernel runs only where no other wants to (SCHED_IDLE), until hurry is
// closed. It ends with its goroutine.
type idleThread struct {
	hurry <-chan struct{} // nil: as any other
	idle  bool
}

// begin makes the calling goroutine's thread idle. Where it must not be, begin waits for hurry or stop.
func (t *idleThread) begin(stop <-chan struct{}) {
	runtime.LockOSThread() // for good: the thread is not to be used again
	if t.idle = setPolicy(unix.SCHED_IDLE) == nil; t.idle {
		return
	}
	select {
	case <-t.hurry:
	case <-stop:
	}
}

// look makes the thread one as any other once there is a hurry.
func (t *idleThread) look() {
	if !t.idle {
		return
	}
	select {
	case <-t.hurry:
		_ = setPolicy(unix.SCHED_NORMAL) // if it must not (sched(7)), it is slow where others want to run
		t.idle = false
	default:
	}
}

// setPolicy sets the calling thread's scheduling policy and leaves its nice value.
func setPolicy(policy uint32) error {
	a, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		return err
	}
	a.Policy = policy
	return unix.SchedSetAttr(0, a, 0)
}

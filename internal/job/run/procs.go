package run

import (
	"runtime"
	"sync"
)

var procs sync.Mutex

// addProcs raises GOMAXPROCS by n until undo is called.
//
// A port's transmit worker sleeps in a system call (nic.Sleeper). Until the Go runtime notices that, for 20
// µs to 10 ms, the worker counts as one of the GOMAXPROCS threads that may run Go code. If GOMAXPROCS workers
// sleep so at the same time, no goroutine runs meanwhile.
func addProcs(n int) (undo func()) {
	add := func(n int) {
		procs.Lock()
		defer procs.Unlock()
		runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + n)
	}
	add(n)
	return func() { add(-n) }
}

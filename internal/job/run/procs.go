package run

import (
	"runtime"
	"sync"
)

// procs guards GOMAXPROCS, which concurrent runs in this process change.
var procs sync.Mutex

// addProcs raises GOMAXPROCS by n until undo is called.
//
// A port's transmit worker sleeps in a system call (nic.Sleeper). Until the Go runtime notices
// that, the worker still counts as one of the GOMAXPROCS threads that may run Go code: for 20 µs,
// or for up to 10 ms when the process does little. If as many workers sleep as GOMAXPROCS allows,
// as with two in-process guests on two processors, no goroutine runs for that time.
func addProcs(n int) (undo func()) {
	add := func(n int) {
		procs.Lock()
		defer procs.Unlock()
		runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + n)
	}
	add(n)
	return func() { add(-n) }
}

package run

import (
	"runtime"
	"sync"
)

// procs guards GOMAXPROCS, which runs that go on at the same time change.
var procs sync.Mutex

// addProcs lets n more threads run Go code at the same time, until the function that it returns is called.
//
// A port's transmit worker sleeps in the kernel (nic.Sleeper), and keeps what entitles it to run Go code, one of
// GOMAXPROCS, until the runtime takes that away: after 20 µs, and after up to 10 ms when little happens. As many such
// sleepers as processors, as where two in-process guests have two of them, and nobody runs for so long.
func addProcs(n int) (undo func()) {
	add := func(n int) {
		procs.Lock()
		defer procs.Unlock()
		runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + n)
	}
	add(n)
	return func() { add(-n) }
}

package ncdevmem

import (
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// waits is for how long each thread of QEMU and of this process was ready to run and had no CPU
// (Linux Documentation/scheduler/sched-stats.rst, /proc/PID/schedstat).
type waits map[string]time.Duration

func (l *bench) waits() waits {
	w := waits{}
	for _, pid := range []int{l.machine.PID(), os.Getpid()} {
		files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
		for _, f := range files {
			var ran, waited int64
			if b, err := os.ReadFile(f); err == nil {
				if _, err := fmt.Sscan(string(b), &ran, &waited); err == nil {
					w[f] = time.Duration(waited)
				}
			}
		}
	}
	return w
}

// longest is the most that one thread waited since before.
func (w waits) longest(before waits) (d time.Duration) {
	for f, t := range w {
		d = max(d, t-before[f])
	}
	return d
}

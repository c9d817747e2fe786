package ncdevmem

import (
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// waits has the time for which each thread of QEMU and of this process has been ready to run without a CPU, by the
// path of its schedstat (Linux Documentation/scheduler/sched-stats.rst, /proc/PID/schedstat), and, by "steal", the
// time that the hypervisor has stolen from all CPUs (proc_stat(5)). It lacks what cannot be read.
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
	var user, nice, system, idle, iowait, irq, softirq, steal int64
	if b, err := os.ReadFile("/proc/stat"); err == nil {
		if _, err := fmt.Sscanf(string(b), "cpu %d %d %d %d %d %d %d %d", &user, &nice, &system, &idle, &iowait, &irq,
			&softirq, &steal); err == nil {
			w["steal"] = time.Duration(steal) * 10 * time.Millisecond // USER_HZ is 100
		}
	}
	return w
}

// together returns the sum of the waits since before, without threads that have ended since.
func (w waits) together(before waits) (d time.Duration) {
	for f, t := range w {
		d += t - before[f]
	}
	return d
}

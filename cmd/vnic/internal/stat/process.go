package stat

import (
	"os"
	"strconv"
	"strings"
)

// The metrics of this process, with the names and helps of Prometheus's client libraries
// (https://prometheus.io/docs/instrumenting/writing_clientlibs/#process-metrics).
var (
	processCPU   = metric{name: "process_cpu_seconds_total", help: "Total user and system CPU time spent in seconds."}
	processSize  = metric{name: "process_virtual_memory_bytes", help: "Virtual memory size in bytes."}
	processRSS   = metric{name: "process_resident_memory_bytes", help: "Resident memory size in bytes."}
	processStart = metric{name: "process_start_time_seconds",
		help: "Start time of the process since unix epoch in seconds."}
	processFDs     = metric{name: "process_open_fds", help: "Number of open file descriptors."}
	processMaxFDs  = metric{name: "process_max_fds", help: "Maximum number of open file descriptors."}
	processMaxSize = metric{name: "process_virtual_memory_max_bytes",
		help: "Maximum amount of virtual memory available in bytes."}
	processReceived = metric{name: "process_network_receive_bytes_total",
		help: "Number of bytes received by the process over the network."}
	processSent = metric{name: "process_network_transmit_bytes_total",
		help: "Number of bytes sent by the process over the network."}
)

// userHZ is the unit of times in /proc/PID/stat: USER_HZ, 100 on all of Linux's architectures but alpha and ia64.
const userHZ = 100

// collectProcess adds them. What /proc does not give is left out.
func collectProcess(x *exposition) {
	// proc_pid_stat(5), from the third field on: the second is a name in parentheses, with anything in it.
	const utime, stime, starttime, vsize, rss = 14 - 3, 15 - 3, 22 - 3, 23 - 3, 24 - 3
	text := procFile("/proc/self/stat")
	if f := floats(text[strings.LastIndexByte(text, ')')+1:]); len(f) > rss {
		x.add(&processCPU, (f[utime]+f[stime])/userHZ)
		x.add(&processSize, f[vsize])
		x.add(&processRSS, f[rss]*float64(os.Getpagesize()))
		_, boot, _ := strings.Cut(procFile("/proc/stat"), "\nbtime ")
		if b := floats(boot); len(b) > 0 {
			x.add(&processStart, b[0]+f[starttime]/userHZ)
		}
	}
	if d, err := os.Open("/proc/self/fd"); err == nil {
		if names, err := d.Readdirnames(-1); err == nil {
			x.add(&processFDs, float64(len(names)-1)) // without d
		}
		_ = d.Close()
	}
	limits := procFile("/proc/self/limits") // the sandbox refuses getrlimit(2)
	limit := func(m *metric, name string) {
		_, columns, _ := strings.Cut(limits, "\n"+name+" ")
		if f := strings.Fields(columns); len(f) == 0 {
			return
		} else if f[0] == "unlimited" {
			x.add(m, 1<<64) // 2^64 - 1 as a float64, as client libraries have it
		} else {
			x.add(m, floats(f[0])[0])
		}
	}
	limit(&processMaxFDs, "Max open files")
	limit(&processMaxSize, "Max address space")
	// Of the process's network namespace: "IpExt: NAME...", and in the next line "IpExt: NUMBER...".
	var names []string
	for line := range strings.Lines(procFile("/proc/self/net/netstat")) {
		f, ok := strings.CutPrefix(line, "IpExt:")
		if !ok {
			continue
		}
		if names == nil {
			names = strings.Fields(f)
			continue
		}
		for i, n := range floats(f) {
			switch {
			case i >= len(names):
			case names[i] == "InOctets":
				x.add(&processReceived, n)
			case names[i] == "OutOctets":
				x.add(&processSent, n)
			}
		}
	}
}

// procFile gives a file of /proc; "": it cannot be read.
func procFile(file string) string {
	b, _ := os.ReadFile(file)
	return string(b)
}

// floats gives the words of a text as numbers: what is none is 0.
func floats(text string) (list []float64) {
	for _, word := range strings.Fields(text) {
		n, _ := strconv.ParseFloat(word, 64)
		list = append(list, n)
	}
	return list
}

package stat

import (
	"os"
	"strconv"
	"strings"
)

// userHZ is how many units of the times in /proc/PID/stat are a second: USER_HZ, 100 on amd64 and arm64.
const userHZ = 100

// collectProcess adds the metrics of this process, with the names and helps of Prometheus's client libraries
// (https://prometheus.io/docs/instrumenting/writing_clientlibs/#process-metrics), as far as /proc can be read.
func collectProcess(x *exposition) {
	// Indices of fields of proc_pid_stat(5), from the third field on: the second may contain any character.
	const utime, stime, starttime, vsize, rss = 14 - 3, 15 - 3, 22 - 3, 23 - 3, 24 - 3
	text := procFile("/proc/self/stat")
	if f := floats(text[strings.LastIndexByte(text, ')')+1:]); len(f) > rss {
		x.add("process_cpu_seconds_total", "Total user and system CPU time spent in seconds.",
			(f[utime]+f[stime])/userHZ)
		x.add("process_virtual_memory_bytes", "Virtual memory size in bytes.", f[vsize])
		x.add("process_resident_memory_bytes", "Resident memory size in bytes.",
			f[rss]*float64(os.Getpagesize()))
		_, boot, _ := strings.Cut(procFile("/proc/stat"), "\nbtime ")
		if b := floats(boot); len(b) > 0 {
			x.add("process_start_time_seconds", "Start time of the process since unix epoch in seconds.",
				b[0]+f[starttime]/userHZ)
		}
	}
	if d, err := os.Open("/proc/self/fd"); err == nil {
		if names, err := d.Readdirnames(-1); err == nil {
			x.add("process_open_fds", "Number of open file descriptors.", float64(len(names)-1)) // without d's own descriptor
		}
		_ = d.Close()
	}
	limits := procFile("/proc/self/limits") // the sandbox refuses getrlimit(2)
	limit := func(line, name, help string) {
		_, columns, _ := strings.Cut(limits, "\n"+line+" ")
		if f := strings.Fields(columns); len(f) == 0 {
			return
		} else if f[0] == "unlimited" {
			x.add(name, help, 1<<64) // as client_golang does for unlimited
		} else {
			x.add(name, help, floats(f[0])[0])
		}
	}
	limit("Max open files", "process_max_fds", "Maximum number of open file descriptors.")
	limit("Max address space", "process_virtual_memory_max_bytes",
		"Maximum amount of virtual memory available in bytes.")
	// Of the process's network namespace: a line "IpExt: NAME...", then a line "IpExt: NUMBER...".
	_, text, _ = strings.Cut("\n"+procFile("/proc/self/net/netstat"), "\nIpExt:")
	names, text, _ := strings.Cut(text, "\nIpExt:")
	values, _, _ := strings.Cut(text, "\n")
	numbers := floats(values)
	for i, name := range strings.Fields(names) {
		switch {
		case i >= len(numbers):
		case name == "InOctets":
			x.add("process_network_receive_bytes_total", "Number of bytes received by the process over the network.",
				numbers[i])
		case name == "OutOctets":
			x.add("process_network_transmit_bytes_total", "Number of bytes sent by the process over the network.",
				numbers[i])
		}
	}
}

func procFile(file string) string {
	b, _ := os.ReadFile(file)
	return string(b)
}

// floats reads words as numbers; a word that is no number is 0.
func floats(text string) (list []float64) {
	for _, word := range strings.Fields(text) {
		n, _ := strconv.ParseFloat(word, 64)
		list = append(list, n)
	}
	return list
}

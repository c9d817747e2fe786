package stat

import (
	"os"

	"github.com/prometheus/procfs"
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

// collectProcess adds them. What /proc does not give is left out.
func collectProcess(x *exposition) {
	p, err := procfs.NewProc(os.Getpid())
	if err != nil {
		return
	}
	if st, err := p.Stat(); err == nil {
		x.add(&processCPU, st.CPUTime())
		x.add(&processSize, float64(st.VirtualMemory()))
		x.add(&processRSS, float64(st.ResidentMemory()))
		if start, err := st.StartTime(); err == nil {
			x.add(&processStart, start)
		}
	}
	if n, err := p.FileDescriptorsLen(); err == nil {
		x.add(&processFDs, float64(n))
	}
	if l, err := p.Limits(); err == nil {
		x.add(&processMaxFDs, float64(l.OpenFiles))
		x.add(&processMaxSize, float64(l.AddressSpace))
	}
	if n, err := p.Netstat(); err == nil { // of its network namespace
		for m, v := range map[*metric]*float64{&processReceived: n.InOctets, &processSent: n.OutOctets} {
			if v == nil {
				v = new(float64)
			}
			x.add(m, *v)
		}
	}
}

package stat

import (
	"testing"

	"github.com/prometheus/procfs"

	"vnic.dev/vnic/internal/testkit"
)

// The metrics of the process, except open_fds, agree with the values that package procfs reads, but for changes between
// the readings.
func TestProcessIsThatOfProcfs(t *testing.T) {
	p := testkit.Must(procfs.Self())(t)
	before := testkit.Must(p.Stat())(t)
	var x exposition
	collectProcess(&x)
	after := testkit.Must(p.Stat())(t)
	value := func(name string) float64 {
		f := x.families["process_"+name]
		if f == nil || len(f.samples) != 1 {
			t.Fatalf("%s: %+v", name, f)
		}
		return f.samples[0].value
	}
	limits := testkit.Must(p.Limits())(t)
	testkit.Equal(t, "start", value("start_time_seconds"), testkit.Must(after.StartTime())(t))
	testkit.Equal(t, "descriptors at most", value("max_fds"), float64(limits.OpenFiles))
	testkit.Equal(t, "address space at most", value("virtual_memory_max_bytes"), float64(limits.AddressSpace))
	for _, c := range []struct {
		name string
		a, b float64
	}{
		{"cpu_seconds_total", before.CPUTime(), after.CPUTime()},
		{"virtual_memory_bytes", float64(before.VirtualMemory()), float64(after.VirtualMemory())},
		{"resident_memory_bytes", float64(before.ResidentMemory()), float64(after.ResidentMemory())},
	} {
		const slack = 16 << 20 // bytes that the runtime may map or free between two readings
		low, high := min(c.a, c.b), max(c.a, c.b)
		if c.name != "cpu_seconds_total" {
			low, high = low-slack, high+slack
		}
		if v := value(c.name); v < low || v > high {
			t.Errorf("%s: %v, and procfs reads %v, then %v", c.name, v, c.a, c.b)
		}
	}
	n := testkit.Must(p.Netstat())(t)
	if n.InOctets == nil || value("network_receive_bytes_total") > *n.InOctets {
		t.Errorf("received %v, and then %v", value("network_receive_bytes_total"), n.InOctets)
	}
	if n.OutOctets == nil || value("network_transmit_bytes_total") > *n.OutOctets {
		t.Errorf("sent %v, and then %v", value("network_transmit_bytes_total"), n.OutOctets)
	}
	testkit.Equal(t, "open descriptors, of at least stdin, stdout and stderr", value("open_fds") >= 3, true)
}

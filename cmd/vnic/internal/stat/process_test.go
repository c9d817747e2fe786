package stat

import (
	"testing"

	"github.com/prometheus/procfs"

	"vnic.dev/vnic/internal/testkit"
)

// The metrics of the process are those that procfs reads, for the parsing is our own.
func TestProcessIsThatOfProcfs(t *testing.T) {
	p := testkit.Must(procfs.Self())(t)
	before := testkit.Must(p.Stat())(t)
	var x exposition
	collectProcess(&x)
	after := testkit.Must(p.Stat())(t)
	value := func(m *metric) float64 {
		f := x.families[m.name]
		if f == nil || len(f.samples) != 1 {
			t.Fatalf("%s: %+v", m.name, f)
		}
		return f.samples[0].value
	}
	limits := testkit.Must(p.Limits())(t)
	testkit.Equal(t, "start", value(&processStart), testkit.Must(after.StartTime())(t))
	testkit.Equal(t, "descriptors at most", value(&processMaxFDs), float64(limits.OpenFiles))
	testkit.Equal(t, "address space at most", value(&processMaxSize), float64(limits.AddressSpace))
	for _, c := range []struct {
		m    *metric
		a, b float64 // before and after
	}{
		{&processCPU, before.CPUTime(), after.CPUTime()},
		{&processSize, float64(before.VirtualMemory()), float64(after.VirtualMemory())},
		{&processRSS, float64(before.ResidentMemory()), float64(after.ResidentMemory())},
	} {
		const slack = 16 << 20 // what a runtime maps, or gives back, between two looks
		low, high := min(c.a, c.b), max(c.a, c.b)
		if c.m != &processCPU {
			low, high = low-slack, high+slack
		}
		if v := value(c.m); v < low || v > high {
			t.Errorf("%s: %v, and procfs reads %v, then %v", c.m.name, v, c.a, c.b)
		}
	}
	n := testkit.Must(p.Netstat())(t)
	if n.InOctets == nil || value(&processReceived) > *n.InOctets {
		t.Errorf("received %v, and then %v", value(&processReceived), n.InOctets)
	}
	if n.OutOctets == nil || value(&processSent) > *n.OutOctets {
		t.Errorf("sent %v, and then %v", value(&processSent), n.OutOctets)
	}
	testkit.Equal(t, "open descriptors, of at least stdin, stdout and stderr", value(&processFDs) >= 3, true)
}

package gvelab

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"vnic.dev/vnic/internal/lab/labtest"
	"vnic.dev/vnic/internal/testkit"
)

// The driver's queues and settings change while TCP streams run, with every byte compared.
//
// Invariant: vnic run: Bindings and reloads of the driver under traffic leave no kernel warning but the one
// that is explained.
func TestDriverSurvivesChurnUnderTraffic(t *testing.T) {
	b := newBench(t, 4*time.Minute, labtest.Log(t), nil)
	b.churn(50, 3, 4)
	b.judge()
	for _, p := range b.lab.Ports() {
		if n := p.Device().(interface{ Failures() uint64 }).Failures(); n != 0 {
			t.Errorf("%d queues of %s have stopped for an error", n, p.Name)
		}
	}
	b.control()
	testkit.NoError(t, b.PowerOff(t.Context()))
}

// do runs an operation; what describes it in errors.
func (b *bench) do(what, op string, a Args) {
	b.Helper()
	if err := b.call(op, &a, nil); err != nil {
		all, _, _ := b.log()
		b.Fatalf("%s: %v\nthe last of the kernel's log: %s", what, err, text(all[max(0, len(all)-60):]))
	}
	b.ok("%s", what)
}

func (b *bench) churn(cycles, flaps, reloads int) {
	b.Helper()
	b.do("links are up, streams run", OpSetup, Args{})
	b.do("all streams flow", OpTraffic, Args{Bytes: 1 << 20})
	b.do(fmt.Sprintf("%d bind/unbind cycles", cycles), OpCycles, Args{Times: cycles})
	b.do(fmt.Sprintf("eth0 down and up %d times", flaps), OpFlap, Args{Times: flaps, Name: "eth0"})
	b.do("queue 3 is bound", OpBind, Args{})
	b.do(fmt.Sprintf("eth0 down and up %d times while bound", flaps), OpFlap, Args{Times: flaps, Name: "eth0"})
	b.do(fmt.Sprintf("its peer's interface down and up %d times while bound", flaps), OpFlap,
		Args{Times: flaps, Name: "eth1"})
	for i := range 2 * flaps { // takes the links of both NICs down and up, with queue 3 bound
		b.carrier(i % len(b.lab.Ports()))
	}
	b.do("all streams flow", OpTraffic, Args{})
	b.do("queue 3 is not bound any more", OpUnbind, Args{})
	b.do("numbers of queues, sizes of rings and MTU changed, and changed back", OpReconfigure, Args{})
	b.do(fmt.Sprintf("driver unloaded and loaded %d times", reloads), OpReload, Args{Times: reloads})
	b.do("all streams flow", OpTraffic, Args{Bytes: 1 << 20})
}

func (b *bench) carrier(port int) {
	b.Helper()
	for _, up := range []bool{false, true} {
		b.lab.Port(port).Device().(interface{ SetLink(bool) }).SetLink(up)
		b.do(fmt.Sprintf("device: link %d up=%t, and the guest sees it", port, up), OpCarrier,
			Args{Name: fmt.Sprint("eth", port), Up: up})
	}
	b.do("all streams flow", OpTraffic, Args{})
}

func (b *bench) log() (all, bad []Record, err error) {
	err = b.call(OpLog, nil, &all)
	return all, Splats(all), err
}

func (b *bench) judge() {
	b.Helper()
	all, bad, err := b.log()
	testkit.OK(b, err)
	for _, r := range all {
		if r.Level <= 4 {
			b.Log("kernel: ", r)
		}
	}
	if len(bad) > 0 {
		b.Fatalf("the kernel's log: %s", text(bad))
	}
}

// explained is a function in the call trace of the warning that gve.md (11) explains.
const explained = "gve_rx_queue_mem_free"

// control provokes the one warning that is explained, and checks that the log shows it.
func (b *bench) control() {
	b.Helper()
	b.do("one more cycle, so that headers are split", OpCycles, Args{Times: 1})
	b.do("negative control: queue 0 is refused (ERANGE)", OpBindZero, Args{})
	all, bad, err := b.log()
	testkit.OK(b, err)
	n, found := 0, false
	for _, r := range bad {
		if strings.Contains(r.Text, "WARNING:") {
			n++
			b.Log("kernel: ", r)
		}
	}
	for _, r := range all {
		found = found || strings.Contains(r.Text, explained)
	}
	if n != 1 || !found {
		b.Errorf("%d warnings, not the one by way of %s: this check would see nothing. %s", n, explained, text(bad))
	}
}

func text(rs []Record) string {
	var b strings.Builder
	for _, r := range rs {
		fmt.Fprintf(&b, "\n\t%v", r)
	}
	return b.String()
}

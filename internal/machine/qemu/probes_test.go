package qemu

import (
	"fmt"
	"testing"
	"time"

	"vnic.dev/vnic/internal/testkit"
)

// A result holds for its boot of the host, QEMU and kernel. A failure with a kernel that is known to boot, or with two
// other kernels, also holds for kernels that were not probed.
func TestProbesAnswerForOtherKernels(t *testing.T) {
	key := func(boot, qemu, kernel string) probeKey { return probeKey{BootID: boot, QEMU: qemu, Kernel: kernel} }
	here := key("now", "11.1", "mine")
	for _, c := range []struct {
		what string
		l    probes
		want string // Why, or "none"
	}{
		{"nothing is known", nil, "none"},
		{"itself", probes{{probeKey: here, Why: "a"}}, "a"},
		{"itself, and others", probes{{probeKey: key("now", "11.1", "x"), Why: "b", Fetched: true},
			{probeKey: here, OK: true, Why: "a"}}, "a"},
		{"one that is known to boot", probes{{probeKey: key("now", "11.1", "x"), Why: "b", Fetched: true}}, "b"},
		{"one that may be to blame", probes{{probeKey: key("now", "11.1", "x"), Why: "b"}}, "none"},
		{"two", probes{{probeKey: key("now", "11.1", "x"), Why: "b"}, {probeKey: key("now", "11.1", "y"), Why: "c"}}, "b"},
		{"one with which it works", probes{{probeKey: key("now", "11.1", "x"), OK: true, Fetched: true}}, "none"},
		{"before the machine booted", probes{{probeKey: key("then", "11.1", "mine"), Why: "b", Fetched: true}}, "none"},
		{"another QEMU", probes{{probeKey: key("now", "10.0", "mine"), Why: "b", Fetched: true}}, "none"},
	} {
		got := "none"
		if p := c.l.find(here); p != nil {
			got = p.Why
		}
		testkit.Equal(t, c.what, got, c.want)
	}

	// A late failure holds for lateHolds.
	late := probes{{probeKey: here, Why: "late", Late: true, At: time.Now().Add(-lateHolds / 2)}}
	if p := late.find(here); p == nil || p.Why != "late" {
		t.Errorf("of half an hour ago: %v", p)
	}
	for _, when := range []time.Time{time.Now().Add(-2 * lateHolds), time.Now().Add(time.Hour), {}} {
		if late[0].At = when; late.find(here) != nil {
			t.Errorf("of %v it still holds", when)
		}
	}

	dir := t.TempDir()
	testkit.Equal(t, "of an empty cache", len(readProbes(dir)), 0)
	now := time.Now()
	probes{{probeKey: key("then", "11.1", "mine"), At: now}}.save(dir)
	for i := range maxProbes + 3 {
		readProbes(dir).with(probed{probeKey: key("now", "11.1", fmt.Sprint(i)), Why: fmt.Sprint(i), At: now}).save(dir)
	}
	// This result replaces the one of its key.
	readProbes(dir).with(probed{probeKey: key("now", "11.1", "10"), OK: true, At: now}).save(dir)
	l := readProbes(dir)
	testkit.Equal(t, "kept", len(l), maxProbes)
	testkit.Equal(t, "the oldest", l[0].Kernel, "3")
	testkit.Equal(t, "the newest", fmt.Sprint(l[maxProbes-1].Kernel, l[maxProbes-1].OK), "10true")
	probes{{probeKey: here, Why: "of an older vnic"}, {probeKey: here, Why: "newer", At: now}}.save(dir)
	if l := readProbes(dir); len(l) != 1 || l[0].Why != "newer" {
		t.Errorf("without a time: %+v", l)
	}
}

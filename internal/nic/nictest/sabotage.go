package nictest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/nic/sabotage"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/splitter"
)

const (
	// sabotageEnv is the environment variable with the fault of the suite's NICs (empty: none), in a process that runs one
	// case.
	sabotageEnv = "VNIC_NICTEST_SABOTAGE"
	caseTimeout = 2 * time.Minute
	// faultWait is how long a guest waits for its NIC if that has a fault.
	faultWait = 3 * time.Second
	faultSeed = 2
)

// sabotaged returns the fault of this process's NICs; nil: none.
func sabotaged(t testing.TB) *nic.Sabotage {
	t.Helper()
	name := os.Getenv(sabotageEnv)
	if name == "" {
		return nil
	}
	f, err := sabotage.Parse(name)
	must(t, err)
	return f.NIC(faultSeed)
}

// SeesSabotage checks for each fault of package sabotage that the model may have that the fault's case passes
// without it, and fails with it. Each run of a case has a process of its own, and is a subtest of the test named test,
// which must call Run. SeesSabotage may be skipped (testkit.Slow).
func SeesSabotage(t *testing.T, model, test string) {
	testkit.Slow(t)
	self, err := os.Executable()
	must(t, err)
	for _, f := range sabotage.Faults() {
		if !f.Has(model) {
			continue
		}
		t.Run(f.Name, func(t *testing.T) {
			for _, fault := range []string{"", f.Name} {
				passed, out := runCase(t, self, test, f.Case, fault)
				if want := fault == ""; passed != want {
					t.Errorf("%s with sabotage %q passes: %v, and not: %v\n%s", f.Case, fault, passed, want, out)
				}
			}
		})
	}
}

// runCase runs a case in another process, and returns whether it passed, and the process's output. The test fails if
// the process ends without a result, or after a panic or a data race.
func runCase(t *testing.T, self, test, name, fault string) (passed bool, out string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), caseTimeout)
	defer cancel()
	c := exec.CommandContext(ctx, self, fmt.Sprintf("-test.run=^%s$/^%s$", test, name), "-test.v", "-test.count=1")
	c.Env = append(os.Environ(), sabotageEnv+"="+fault)
	b, err := c.CombinedOutput()
	out = string(b)
	passed = strings.Contains(out, fmt.Sprintf("--- PASS: %s/%s ", test, name))
	failed := strings.Contains(out, fmt.Sprintf("--- FAIL: %s/%s ", test, name))
	switch {
	case passed == failed, passed != (err == nil), strings.Contains(out, "panic:"), strings.Contains(out, "DATA RACE"):
		t.Fatalf("%s with sabotage %q: %v\n%s", name, fault, err, out)
	}
	return passed, out
}

// Invariant: nic: RSS goes by Toeplitz hash, key and table.
func placed(t *testing.T, lab Lab, _ Traits) {
	a, b := lab(t, Options{})
	rss, err := b.Port().RSS()
	must(t, err)
	rss.Table = []uint16{0, 1, 2, 0, 1, 2, 1, 2}
	for i := range rss.Key {
		rss.Key[i] = byte(3 + 29*i)
	}
	must(t, b.Port().SetRSS(rss))
	const n = 48
	for q := range 3 {
		b.Post(q, n)
	}
	packets := func() (ps [3]uint64) {
		for q := range ps {
			rx, _ := b.Port().QueueCounters(q)
			ps[q] = rx.Packets
		}
		return ps
	}
	want := packets()
	for i := range n {
		f := Make(b.MAC(), a.MAC(), Spec{V6: i%2 == 1, UDP: i%3 == 1, Port: uint16(7000 + 31*i), Payload: 3})
		var h splitter.Headers
		must(t, splitter.Parse(f.Header, uint32(len(f.Header)+len(f.Payload)), &h))
		hash := splitter.Toeplitz(&rss.Key, &h.Flow)
		want[rss.Table[hash%uint32(len(rss.Table))]]++
		a.Send(0, f)
		if got := packets(); got != want {
			t.Fatalf("flow %d, hash %#x: packets by queue %v, not %v", i, hash, got, want)
		}
	}
}

// Invariant: nic: The buffers of each transmitted frame are returned to its driver.
func comeBack(t *testing.T, lab Lab, _ Traits) {
	a, b := lab(t, Options{})
	for q := range 2 {
		for i := range 60 {
			f := Make(b.MAC(), a.MAC(), Spec{UDP: true, Payload: 10 + i})
			if i%4 == 3 {
				b.Post(0, 1)
				a.Send(q, f)
				Arrives(t, b, 0, &f)
			} else {
				a.Send(q, Make(a.MAC(), a.MAC(), Spec{UDP: true, Payload: 10 + i})) // to itself: no port receives the frame
			}
		}
	}
}

// Invariant: nic: A waiting driver gets its interrupt.
func called(t *testing.T, lab Lab, _ Traits) {
	a, b := lab(t, Options{})
	SplitTo(t, b, 1, 2000)
	for i := range 60 {
		for q, port := range []uint16{0: 2001, 1: 2000} {
			f := Make(b.MAC(), a.MAC(), Spec{Port: port, Payload: 10 + i})
			b.Post(q, 1)
			b.Arm(q)
			a.Send(0, f) // then the receiver's NIC is done too
			if !b.Called(q) {
				t.Fatalf("queue %d: no call for frame %d", q, i)
			}
			Arrives(t, b, q, &f)
			if b.Called(q) {
				t.Errorf("queue %d: frame %d: a call more than was asked for", q, i)
			}
		}
	}
}

// Invariant: nic: A partial checksum is completed, by the NIC or by a receiver that accepts it.
func completed(t *testing.T, lab Lab, traits Traits) {
	for _, o := range []Options{{}, {NoOffload: true}} {
		a, b := lab(t, o)
		for i, s := range []Spec{{Payload: 1000}, {V6: true, Payload: 999}, {UDP: true, Payload: 77}, {V6: true, UDP: true,
			Payload: 1}, {Opts: 12}, {VLANs: 1, Payload: 1400}} {
			f := Make(b.MAC(), a.MAC(), s)
			b.Post(0, 1)
			a.Send(0, f)
			got := b.Receive(0)
			bytes := got.Bytes()
			var h splitter.Headers
			must(t, splitter.Parse(bytes, uint32(len(bytes)), &h))
			payload := bytes[h.HdrLen:]
			sum := splitter.VerifyL4(&h, bytes[:h.HdrLen], uint32(len(payload)), splitter.Sum(payload, 0))
			switch {
			case got.Partial && !o.NoOffload && !traits.Completes && got.Start == f.Start && got.Offset == f.Offset:
			case !got.Partial && sum == splitter.CsumGood:
			default:
				t.Errorf("frame %d, %+v: partial %v at %d+%d, good %v: %v", i, o, got.Partial, got.Start, got.Offset, got.Good, sum)
			}
		}
	}
}

// Invariant: nic: A stopped receive queue writes to no memory.
func leftAlone(t *testing.T, lab Lab, _ Traits) {
	a, b := lab(t, Options{})
	SplitTo(t, b, 1, 2000)
	for q, port := range []uint16{0: 2001, 1: 2000} {
		f := Make(b.MAC(), a.MAC(), Spec{Port: port, Payload: 100})
		b.Post(q, 3)
		arrives(t, a, b, q, f)
		b.Stop(q)
		was := b.Buffers(q)
		before, err := b.Port().PortCounters()
		must(t, err)
		for range 3 {
			a.Send(0, f)
		}
		if now := b.Buffers(q); len(was) < 3 || !slices.EqualFunc(was, now, bytes.Equal) {
			t.Errorf("queue %d is stopped, and its %d buffers are others", q, len(was))
		}
		after, err := b.Port().PortCounters()
		must(t, err)
		if after.Rx.Drops != before.Rx.Drops+3 || after.Rx.Packets != before.Rx.Packets {
			t.Errorf("counters %+v, and before %+v", after.Rx, before.Rx)
		}
	}
}

package nictest

import (
	"testing"
	"time"

	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/testkit"
)

// Invariant: nic: A NIC that takes no buffers for a while, or completes late, loses no unicast
// frame as long as its senders' patience lasts and they do not find it slow.
func exhausted(t *testing.T, lab Lab, _ Traits) {
	const n = 100
	a, b := lab(t, Options{})
	b.Post(0, n+1)
	b.Port().Exhaust(nic.MaxExhaustion)
	var fs []Frame
	for i := range n {
		fs = append(fs, Make(b.MAC(), a.MAC(), Spec{UDP: true, Payload: 100 + i}))
	}
	busy(t, b, func() { a.Queue(0, fs...) })
	a.Post(0, 1)
	f := Make(a.MAC(), b.MAC(), Spec{Payload: 5})
	arrives(t, b, a, 0, f)
	b.Send(1, hello(b)) // the answer to hello waits too
	if rx, _ := b.Port().QueueCounters(0); rx.Packets != 0 || b.Port().Faults().Refused == 0 {
		t.Errorf("%d packets, %+v", rx.Packets, b.Port().Faults())
	}
	b.Port().Exhaust(0)
	a.Sent(0)
	answered := 0
	for next := 0; next < n || answered == 0; {
		got := b.Receive(0)
		if isControl(&got) {
			answered++
			continue
		}
		same(t, &got, &fs[next])
		next++
	}
	b.Post(0, 1)
	b.Port().Exhaust(time.Hour) // the port limits the time to MaxExhaustion
	b.Port().Exhaust(time.Millisecond)
	arrives(t, a, b, 0, fs[0])
	rx, _ := b.Port().QueueCounters(0)
	testkit.Equal(t, "drops", rx.Drops, 0)
	b.Port().Exhaust(nic.MaxExhaustion)
}

func isControl(f *Frame) bool {
	return len(f.Header) > 14 && f.Header[12] == 0x88 && f.Header[13] == 0xb5
}

// Invariant: nic: A NIC that takes no buffers for a while, or completes late, loses no unicast
// frame as long as its senders' patience lasts and they do not find it slow.
func late(t *testing.T, lab Lab, _ Traits) {
	const n, delay = 70, 30 * time.Millisecond
	a, b := lab(t, Options{})
	var fs []Frame
	for i := range n {
		fs = append(fs, Make(b.MAC(), a.MAC(), Spec{UDP: true, Payload: 100 + i}))
	}
	received := func() {
		t.Helper()
		for i := range fs {
			Arrives(t, b, 0, &fs[i])
		}
	}
	a.Port().DelayCompletions(delay)
	b.Post(0, n)
	start := time.Now()
	a.Send(0, fs...)
	if d := time.Since(start); d < delay {
		t.Errorf("completed after %v", d)
	}
	received()
	a.Port().DelayCompletions(time.Hour) // the port limits the delay to MaxCompletionDelay
	b.Post(0, n+1)
	a.Queue(0, fs...)
	received() // does not wait for the sender's completions
	testkit.Eventually(t, "late completions", func() bool { return a.Port().Faults().LateCompletions == 2*n })
	a.Port().DelayCompletions(0)
	a.Send(0, fs[0])
	Arrives(t, b, 0, &fs[0])
}

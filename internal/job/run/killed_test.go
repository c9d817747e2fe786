package run

import (
	"context"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/agent"
)

// A receiver that returns no tokens is killed once packets are dropped. Then a transfer to another receiver in the same
// guest succeeds.
//
// Invariant: guest-images: A receiver that is killed leaves no pages or queues in use by kernel or
// NIC.
func TestKilledReceiverLeavesNothing(t *testing.T) {
	x := newTools(t, unused(t, NICGVE), "eth0")
	b := x.s.ends[1]
	ctx, kill := context.WithCancel(x.Context())
	defer kill()
	got := x.receiver(ctx, "-H")
	sent := make(chan agent.ExecResult, 1)
	go func() { sent <- x.send(x.Context(), "128M") }()
	received := func() bool { c, _ := b.nic().PortCounters(); return c.Rx.DeviceBytes > 0 }
	if !x.until(received) {
		t.Fatal("nothing was received")
	}
	before := x.s.counters().drops
	if !x.until(func() bool { return x.s.counters().drops > before }) {
		t.Fatal("nothing was dropped")
	}
	if list, err := b.nic().Buffers(); err != nil || len(list) == 0 {
		t.Errorf("buffers of a receiver that is alive: %v, %v", list, err)
	}
	kill()
	<-got
	if r := <-sent; r.Status != 1 || !strings.Contains(r.Stderr, "reset by peer") &&
		!strings.Contains(r.Stderr, "broken pipe") {
		t.Errorf("send to a receiver that was killed: %+v", r)
	}
	if !x.until(func() bool { return x.s.ends[0].empty() == nil && b.empty() == nil }) {
		t.Error(b.empty())
	}
	x.transfer(little)
}

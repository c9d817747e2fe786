package gve

import (
	"testing"

	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/nic/nictest"
	"vnic.dev/vnic/internal/testkit"
)

// A dropped interrupt leaves its vector armed.
//
// Invariant: nic: After a dropped interrupt the next one is raised.
func TestLostInterruptLeavesItsVectorArmed(t *testing.T) {
	w := newWorld(t)
	b := w.B
	b.Post(0, 3)
	vector := b.rxd[0].params.notify
	b.bell(irqDoorbells+uint32(vector), irqEnable)
	b.irqs[vector].fired()
	management := b.irq(2 * b.o.pairs)
	b.Port().LoseInterrupt()
	b.dev.SetLink(false)
	b.dev.SetLink(true)
	testkit.Equal(t, "of the link", management.fired(), 2)
	fs := []nictest.Frame{tcp(w.A, b, 10), tcp(w.A, b, 20), tcp(w.A, b, 30)}
	for i, fired := range []uint64{0, 1, 0} {
		w.A.Send(0, fs[i])
		testkit.Equal(t, "interrupts", b.irqs[vector].fired(), fired)
	}
	for i := range fs {
		arrives(t, b, 0, &fs[i])
	}
	testkit.Equal(t, "lost", b.Port().Faults().LostInterrupts, 1)
}

// A transmit queue that ends writes its delayed completions.
//
// Invariant: nic: A NIC that takes no buffers for a while, or completes late, loses no unicast
// frame as long as its senders' patience lasts and they do not find it slow.
func TestStopShowsLateCompletions(t *testing.T) {
	const n = 40
	w := newWorld(t)
	w.A.Port().DelayCompletions(nic.MaxCompletionDelay)
	w.B.Post(0, n)
	for range n {
		w.A.Queue(0, tcp(w.A, w.B, 100))
	}
	for range n {
		w.B.Receive(0)
	}
	w.A.pass(opDestroyTx, uint32(0))
	d := w.A.txd[0]
	for some := true; some; {
		some, _ = d.poll()
	}
	testkit.Equal(t, "packets not completed", d.flight, 0)
}

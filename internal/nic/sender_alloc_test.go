//go:build !race

package nic_test

import (
	"testing"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/testkit"
)

// A Sender's rounds allocate nothing for frames that are held in one round and taken in the next.
func TestSenderAllocatesNothing(t *testing.T) {
	a, b := pair(t, nic.SenderOptions{Patience: patient.Patience})
	var bufs []toyBuf
	for i := range toyBatch {
		bufs = append(bufs, newToyBuf())
		a.send(a.frame(b.mac, i))
	}
	b.rx.postNew(3 * toyBatch) // makes the memory that the next line gives to b.rx.came
	b.rx.came, b.rx.posted = b.rx.posted[:0], b.rx.came[:0:0]
	b.rx.posted = make([]toyBuf, 0, toyBatch)
	dma.Guard()
	taken := 0
	round := func() {
		a.tx.next, a.tx.done, a.tx.staged = 0, a.tx.done[:0], a.tx.staged[:0]
		for held := range 2 {
			n := testkit.Must(a.tx.sender.Round(false))(t)
			taken += n
			if held == 0 {
				b.rx.posted = append(b.rx.posted, bufs...)
			}
		}
		bufs = append(bufs[:0], b.rx.came...)
		for i := range bufs {
			bufs[i].b = bufs[i].b[:2048]
		}
		b.rx.came = b.rx.came[:0]
		if len(bufs) != toyBatch || len(a.tx.done) != toyBatch {
			t.Fatalf("%d frames arrived, %d came back", len(bufs), len(a.tx.done))
		}
	}
	for range 3 {
		round()
	}
	if n := testing.AllocsPerRun(100, round); n != 0 {
		t.Errorf("%d frames, held and sent, cost %v allocations", toyBatch, n)
	}
	if taken == 0 {
		t.Error("no frames")
	}
}

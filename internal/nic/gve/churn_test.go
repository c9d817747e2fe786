package gve

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/nic/nictest"
	"vnic.dev/vnic/internal/testkit"
)

// A guest restarts its queues, and loses and regains its GPU's memory, while two other guests send frames to it, and it
// sends frames to one of them.
//
// Invariant: nic/gve: A queue restarts while others continue without loss; a stopped queue writes
// to no memory.
func TestChurn(t *testing.T) {
	w := newWorldWith(t, rawOptions{pairs: 3, mtu: 9000, p2p: true, rsc: true})
	g := w.Bad
	for q := range uint16(3) {
		_, err := g.Port().AddFlow(control.FlowRule{Proto: 6, DstPort: 5000 + q, Queue: q})
		g.OK(err)
	}
	var ended atomic.Bool
	var senders sync.WaitGroup
	for i, from := range []*suiteGuest{w.A, w.B} {
		senders.Add(1)
		dma.Go(func() {
			defer senders.Done()
			var fs []nictest.Frame
			for k := range 12 {
				f := nictest.Make(g.mac, from.mac, nictest.Spec{Port: uint16(5000 + k%3), Payload: 700 * k})
				if k > 9 {
					f.GSO, f.MSS = 1, 1448
				}
				fs = append(fs, f)
			}
			for !ended.Load() {
				from.Next = 8 << 20
				for k := range fs {
					from.Add(i, &fs[k], k%4 == 3)
				}
				from.Show(i)
				from.Sent(i)
			}
		})
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	base := g.Next
	gpu := true
	moved := func() bool { // enough frames for the test to mean something
		c, err := g.Port().PortCounters()
		g.OK(err)
		return c.Rx.Packets >= 100 && c.Tx.Packets >= 100
	}
	late := time.Now().Add(testkit.Patience)
	for round := 0; round < 2000 || !moved() && time.Now().Before(late); round++ {
		q := rnd.IntN(3)
		switch rnd.IntN(6) {
		case 0, 1: // rings always in the same memory
			g.Next = base + uint64(q)*(1<<20)
			g.startRx(q, rnd.IntN(2) == 0)
		case 2:
			g.Next = base + uint64(3+q)*(1<<20)
			g.startTx(q)
		case 3:
			g.Next = base + 6<<20
			for range 8 {
				f := nictest.Make(w.A.mac, g.mac, nictest.Spec{Payload: rnd.IntN(8000)})
				if d := g.txd[q]; d.room() > 20 {
					g.Add(q, &f, gpu && rnd.IntN(2) == 0)
				}
			}
			g.txd[q].doorbell()
			w.A.refill(0, 24<<20)
		case 4:
			if gpu {
				g.dev.Unmapping(rawGPU, rawGPUSize)
				g.OK(g.space.Remove(rawGPU, rawGPUSize))
			} else {
				g.OK(g.space.Add(g.gpu()))
			}
			gpu = !gpu
		case 5:
			if g.rxd[q].split {
				g.refill(q, rawGPU)
			} else {
				g.refill(q, 24<<20)
			}
		}
	}
	if !gpu {
		g.OK(g.space.Add(g.gpu()))
	}
	ended.Store(true)
	for q := range 3 { // so that no sender waits for g
		g.pass(opDestroyRx, uint32(q))
		g.pass(opDestroyTx, uint32(q))
	}
	senders.Wait()
	w.A.Next, w.B.Next, g.Next = 16<<20, 16<<20, base
	w.A.startRx(0, false)
	g.startRx(0, true)
	g.startTx(0)
	g.Post(0, 1)
	f := nictest.Make(g.mac, w.A.mac, nictest.Spec{Port: 5000, Payload: 3000})
	w.A.Send(0, f)
	arrives(t, g, 0, &f)
	g.sendsTo(w.A, 0, 2000)
	w.Moves(t)
	testkit.Equal(t, "queues failed", g.dev.Failures(), 0)
	c, err := g.Port().PortCounters()
	g.OK(err)
	t.Logf("received %d, lost %d; sent %d, lost %d", c.Rx.Packets, c.Rx.Drops, c.Tx.Packets, c.Tx.Drops)
	if c.Rx.Packets < 100 || c.Tx.Packets < 100 {
		t.Errorf("received %d frames and sent %d only", c.Rx.Packets, c.Tx.Packets)
	}
}

// refill takes the received frames of a queue, and posts buffers, in 512 pages from base on, until 200 are unused.
func (g *suiteGuest) refill(q int, base uint64) {
	d := g.rxd[q]
	for c := (rxCompl{}); d.poll(&c); {
	}
	for d.posted-d.seen < 200 {
		d.post(base + uint64(d.posted%512)*4096)
	}
	g.dev.rx[q].doorbell(d.posted & d.mask) // not by a register write: w.A's device belongs to another goroutine
}

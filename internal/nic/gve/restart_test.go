package gve

import (
	"bytes"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/nic/nictest"
	"vnic.dev/vnic/internal/testkit"
)

// Over many laps of small rings, no frame is lost, repeated or changed.
//
// Invariant: nic/gve: Rings wrap, and may lie in scattered pages.
func TestRingsWrap(t *testing.T) {
	testkit.Slow(t)
	for _, ring := range []int{64, 128} {
		w := newWorldWith(t, rawOptions{pairs: 1, mtu: 9000, p2p: true, rsc: true, ring: ring, bufSize: 2048})
		for i := range 40 * ring {
			w.Bad.Next, w.A.Next = 24<<20, 24<<20
			f := tcp(w.Bad, w.A, i*37%8900)
			w.A.postFor(0, &f)
			w.Bad.Send(0, f)
			arrives(t, w.A, 0, &f)
			f = tcp(w.A, w.Bad, i*41%8900)
			w.Bad.postFor(0, &f)
			w.A.Send(0, f)
			arrives(t, w.Bad, 0, &f)
		}
		if tx, rx := w.Bad.txd[0].posted, w.Bad.rxd[0].posted; tx < uint32(10*ring) || rx < uint32(10*ring) {
			t.Errorf("%d descriptors and %d buffers in rings of %d", tx, rx, ring)
		}
	}
}

// postFor posts the buffers that an unsplit frame needs, in memory that is reused.
func (g *suiteGuest) postFor(q int, f *nictest.Frame) {
	d := g.rxd[q]
	for range (len(f.Header) + len(f.Payload) + g.o.bufSize - 1) / g.o.bufSize {
		d.post(16<<20 + uint64(d.posted&d.mask)*16384)
	}
	d.doorbell()
}

// A frame fills buffers of unusual sizes, each to its last byte before the next. A frame that needs more than
// maxRxBufs is counted as too big.
func TestOddBufferSizes(t *testing.T) {
	for _, size := range []int{4, 5, 64, 1000, 4095, 4097, rxMaxLen} {
		w := newWorldWith(t, rawOptions{pairs: 1, mtu: 9000, bufSize: size, p2p: true})
		d := w.Bad.rxd[0]
		most := min(maxRxBufs*size, 9014)
		for _, n := range []int{0, 1, 2, 7, 9, 10, 100, 1000, most - 54} {
			if 54+n > most {
				continue
			}
			need := (54 + n + size - 1) / size
			f := tcp(w.A, w.Bad, n)
			w.Bad.postFor(0, &f)
			w.A.Send(0, f)
			arrives(t, w.Bad, 0, &f)
			if d.posted != d.seen {
				t.Errorf("buffers of %d, frame of %d: %d were used, not %d", size, 54+n, int(d.seen-d.posted)+need, need)
			}
		}
		if most < 9014 {
			before := w.Bad.dev.rx[0].count.tooBig.get()
			w.A.Send(0, tcp(w.A, w.Bad, most-53))
			if n := w.Bad.dev.rx[0].count.tooBig.get(); n != before+1 || w.Bad.Port().Link().Counters().Busy != 0 {
				t.Errorf("%d frames too big", n-before)
			}
		}
		w.Moves(t)
	}
}

// Invariant: nic/gve: A queue restarts while others continue without loss; a stopped queue writes
// to no memory.
func TestRestartOfOneQueueUnderTraffic(t *testing.T) {
	w := newWorld(t)
	b := w.B
	for q := range uint16(2) {
		_, err := b.Port().AddFlow(control.FlowRule{Proto: 6, DstPort: 5000 + q, Queue: q + 1})
		b.OK(err)
	}
	var ended atomic.Bool
	done := make(chan struct{})
	dma.Go(func() { // sends to B's queue 2, which the loop below restarts
		defer close(done)
		f := nictest.Make(b.mac, w.A.mac, nictest.Spec{Port: 5001, Payload: 3000})
		for !ended.Load() {
			w.A.Next = 8 << 20
			for range 16 {
				w.A.Add(1, &f, false)
			}
			w.A.Show(1)
			w.A.Sent(1)
		}
	})
	ringsAt := b.Next
	steady := b.rxd[1]
	delivered := uint64(0)
	for i := range 100 {
		b.Next = ringsAt
		split := i%2 == 1
		clear(b.RAM[ringsAt:][:1<<20])
		b.startRx(2, split)
		d := b.rxd[2]
		for k := range 200 {
			d.post(20<<20 + uint64(k)*4096)
		}
		d.doorbell()
		var c rxCompl
		for range 3 { // frames arrive: the queue runs
			d.next(&c)
			if c.bad || c.split && !split {
				t.Fatalf("%+v", c)
			}
		}
		// Meanwhile a frame of another sender arrives on queue 1.
		b.Next = 6 << 20
		f := nictest.Make(b.mac, w.Bad.mac, nictest.Spec{Port: 5000, Payload: 2000})
		b.Post(1, 1)
		w.Bad.Send(0, f)
		arrives(t, b, 1, &f)
		delivered++
		b.dev.rx[2].stop()
		rings := bytes.Clone(b.RAM[ringsAt:][:1<<20])
		buffers := b.RAM[20<<20:][:200*4096]
		for k := range buffers {
			buffers[k] = byte(i)
		}
		for range 50 {
			runtime.Gosched()
		}
		for k := range buffers {
			if buffers[k] != byte(i) {
				t.Fatalf("round %d: byte %d of the buffers was written after stop", i, k)
			}
		}
		if !bytes.Equal(rings, b.RAM[ringsAt:][:1<<20]) {
			t.Fatalf("round %d: rings were written after stop", i)
		}
	}
	ended.Store(true)
	<-done
	if rx, _ := b.Port().QueueCounters(1); rx.Packets != delivered || rx.Drops != 0 || b.rxd[1] != steady {
		t.Errorf("the other queue: %+v", rx)
	}
	w.Moves(t)
}

// When a transmit queue stops, its frames that wait for a receiver without buffers are dropped and counted.
//
// Invariant: nic/gve: A queue restarts while others continue without loss; a stopped queue writes
// to no memory.
func TestStopWhileFramesWait(t *testing.T) {
	w := newWorld(t)
	const n = 20
	var fs []nictest.Frame
	for range n {
		fs = append(fs, tcp(w.Bad, w.B, 100))
	}
	w.Bad.Queue(1, fs...)
	w.Bad.waits(1)
	w.Bad.dev.tx[1].stop()
	if _, tx := w.Bad.Port().QueueCounters(1); tx.Drops != n {
		t.Errorf("%+v", tx)
	}
	w.Bad.startTx(1)
	w.Bad.sendsTo(w.B, 1, 7)
	w.Moves(t)
}

// waits waits until a transmit queue has, at least once, tried to sleep because its frames wait for a receiver.
func (g *suiteGuest) waits(q int) {
	testkit.Eventually(g, "a sender that waits", func() bool { return g.dev.tx[q].sender.Stats().Waits > 0 })
}

// The worker reads an incomplete packet once for each doorbell.
func TestHalfAPacketIsNotPolled(t *testing.T) {
	w := newWorld(t)
	dma.Guard()
	q, d := w.Bad.dev.tx[0], w.Bad.txd[0]
	q.stop() // ends the worker: the test runs its rounds
	w.Bad.OK(q.rings.pin(w.Bad.space, &d.params, "", txDescLen, txComplLen))
	defer q.rings.close()
	f := tcp(w.Bad, w.A, 100)
	w.A.Post(0, 1)
	posted := d.posted
	w.Bad.Add(0, &f, false)
	for posted++; ; posted++ {
		q.tail.Store(posted & d.mask)
		if !q.Pending() {
			t.Error("a doorbell is not seen")
		}
		n, err := q.sender.Round(false)
		if err != nil || q.Pending() {
			t.Fatalf("%v, pending %v", err, q.Pending())
		}
		if posted == d.posted {
			if n != 1 {
				t.Errorf("%d packets", n)
			}
			break
		}
	}
	arrives(t, w.A, 0, &f)
}

// Invariant: nic: A guest that takes no frames stalls no other guest.
func TestDeadGuestStallsNobody(t *testing.T) { nictest.DeadGuestStallsNobody(t, newWorld(t)) }

// Invariant: nic: A guest that takes few frames delays frames to others only briefly.
func TestSlowReceiverStallsNobody(t *testing.T) { nictest.SlowReceiverStallsNobody(t, newWorld(t)) }

// Invariant: nic: Two guests alone on a switch lose nothing while the receiver pauses for less than
// the sender's patience.
func TestPausesLoseNothing(t *testing.T) { nictest.PausesLoseNothing(t, newPatientWorld(t)) }

type flag struct{ atomic.Int32 }

func (f *flag) Wake() { f.Add(1) }

// Arm lets a waker without a port wait only while the queue runs and has no more buffers than a frame last found too
// few.
//
// Invariant: nic/gve: No wake-up of a sender is lost.
func TestArm(t *testing.T) {
	w := newPatientWorld(t)
	f := tcp(w.A, w.B, 9000-40) // needs three buffers
	q, d := w.B.dev.rx[0], w.B.rxd[0]
	var woken flag
	d.post(16 << 20)
	d.doorbell()
	w.A.Queue(0, f)
	w.A.waits(0)
	if !q.Arm(&woken) || woken.Load() != 0 {
		t.Error("not let wait")
	}
	d.post(17 << 20)
	d.doorbell() // still too few, but more than before
	testkit.Equal(t, "wake-ups", woken.Load(), 1)
	testkit.Eventually(t, "a sender that waits again", func() bool { // a sender about to sleep looks once more
		q.Lock()
		defer q.Unlock()
		return q.Waiting()
	})
	d.post(18 << 20)
	q.tail.Store(d.posted) // as after a doorbell that found no waiter yet
	if q.Arm(&woken) {
		t.Error("let wait, with buffers there")
	}
	d.doorbell()
	w.A.Sent(0)
	arrives(t, w.B, 0, &f)
	if !q.Arm(&woken) {
		t.Error("not let wait")
	}
	q.Disarm(&woken)
	q.Disarm(&woken)
	w.B.Post(0, 1)
	testkit.Equal(t, "wake-ups", woken.Load(), 1)
	w.B.startRx(0, false)
	if !q.Arm(&woken) {
		t.Error("not let wait for a new ring")
	}
	q.stop()
	if woken.Load() != 2 || q.Arm(&woken) {
		t.Error("waits for a stopped queue")
	}
}

// Invariant: nic/gve: No wake-up of a sender is lost.
func TestNoWakeIsLost(t *testing.T) {
	w := newPatientWorld(t)
	f := tcp(w.A, w.B, 100)
	for range 2000 {
		w.A.Next, w.B.Next = 8<<20, 8<<20
		w.A.Queue(0, f)
		w.B.rxd[0].post(16 << 20)
		w.B.rxd[0].doorbell()
		w.A.Sent(0)
		arrives(t, w.B, 0, &f)
	}
	testkit.Equal(t, "frames were given up", w.A.dev.tx[0].sender.Stats().GaveUp, 0)
}

// Invariant: nic: Truncating a guest's memory affects only that guest.
func TestTruncatedMemoryIsItsOwnersFault(t *testing.T) {
	for name, sender := range map[string]bool{"sender": true, "receiver": false} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.A.Post(0, 4)
			w.Bad.Post(0, 4)
			if sender {
				f := tcp(w.Bad, w.A, 6000)
				w.Bad.Add(0, &f, false)
				tail := w.Bad.txd[0].posted & w.Bad.txd[0].mask
				w.Bad.OK(unix.Ftruncate(w.Bad.FD, 0))
				w.Bad.dev.tx[0].doorbell(tail)
				w.Bad.broken("tx0", dma.ErrFault)
			} else {
				w.Bad.OK(unix.Ftruncate(w.Bad.FD, 0))
				w.A.Send(0, tcp(w.A, w.Bad, 100))
				w.Bad.broken("rx0", dma.ErrFault)
			}
			testkit.Equal(t, "failed queues of the other", len(w.A.errs), 0)
			w.Moves(t)
		})
	}
}

// Frames that wait for a receiver are dropped if their payload's memory is unmapped, and their queue goes on. Queues
// whose rings are unmapped fail.
//
// Invariant: nic/gve: Before a ring's memory is unmapped, its queue stops.
func TestMemoryRemovedUnderTraffic(t *testing.T) {
	w := newPatientWorld(t)
	for range 4 {
		f := tcp(w.Bad, w.B, 4000)
		w.Bad.Add(0, &f, true)
	}
	w.Bad.txd[0].doorbell()
	w.Bad.waits(0)
	for i := range w.Bad.dev.rx {
		w.Bad.dev.rx[i].unmapping(rawGPU, rawGPUSize)
		w.Bad.dev.tx[i].unmapping(rawGPU, rawGPUSize)
	}
	w.Bad.OK(w.Bad.space.Remove(rawGPU, rawGPUSize))
	w.B.Post(0, 8)
	w.Bad.Sent(0) // the frames complete, although they are dropped
	if n := w.Bad.dev.tx[0].count.unmapped.get(); n != 4 || w.Bad.failure("tx0") != nil {
		t.Errorf("%d frames, %v", n, w.Bad.failure("tx0"))
	}
	f := tcp(w.Bad, w.B, 400)
	w.Bad.Send(0, f)
	arrives(t, w.B, 0, &f)
	w.Bad.Post(0, 4)
	for i := range w.Bad.dev.rx {
		w.Bad.dev.rx[i].unmapping(0, rawMem)
		w.Bad.dev.tx[i].unmapping(0, rawMem)
	}
	w.Bad.OK(w.Bad.space.Remove(0, rawMem))
	w.A.Send(0, tcp(w.A, w.Bad, 100))
	for range 2 * len(w.Bad.dev.rx) {
		<-w.Bad.failed
	}
	for q := range w.Bad.dev.rx {
		if rx, tx := fmt.Sprint("rx", q), fmt.Sprint("tx", q); w.Bad.failure(rx) == nil || w.Bad.failure(tx) == nil {
			t.Errorf("%s or %s has not failed", rx, tx)
		}
	}
	w.Moves(t)
}

// Backlog returns how many descriptors wait, and whether their number plus txBatch is three quarters of the ring's
// length or more.
func TestBacklog(t *testing.T) {
	w := newWorld(t)
	q, d := w.A.dev.tx[0], w.A.txd[0]
	q.sender.Stop() // the queue keeps its rings
	f := nictest.Make(w.Bad.mac, w.A.mac, nictest.Spec{Payload: 100})
	for range txBatch {
		w.A.Add(0, &f, false)
	}
	q.tail.Store(d.posted & d.mask)
	_, err := q.sender.Round(false)
	testkit.OK(t, err)
	size := int(q.in.mask) + 1
	for waits := 0; waits < size; waits++ { // descriptors that are not read
		frames, full := q.Backlog()
		testkit.Equal(t, "descriptors that wait", frames, waits)
		testkit.Equal(t, fmt.Sprint("ring is full with ", waits), full, waits+txBatch >= size*3/4)
		q.tail.Store((q.tail.Load() + 1) & q.in.mask)
	}
}

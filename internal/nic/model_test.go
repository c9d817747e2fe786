package nic_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/nic/nictest"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
)

// The types toy, toyRx and toyTx are a small device model, whose rings are slices.

const toyBatch = 8

type toy struct {
	t    testing.TB
	mac  wire.MAC
	sw   *wire.Switch
	port *nic.Port
	rx   *toyRx
	tx   *toyTx
}

// newToy makes a NIC, whose transmit queue is stopped, on a switch that has learnt its address.
func newToy(t testing.TB, sw *wire.Switch, n byte, o nic.SenderOptions, link wire.LinkOptions) *toy {
	t.Helper()
	d := &toy{t: t, sw: sw, mac: wire.MAC{2, 0, 0, 0, 0, n}, rx: &toyRx{called: make(chan struct{}, 1)}}
	d.rx.Init(d.rx)
	space := dma.NewSpace(fmt.Sprint("toy", n), dma.NewFiles())
	limits := new(atomic.Pointer[wire.Limits])
	limits.Store(&wire.Limits{MaxFrame: 1514})
	conf := nic.Config{Name: space.Name(), MAC: d.mac, MTU: 1500, QueuePairs: 1, HeaderLimit: 256, Flows: 8}
	var err error
	d.port, err = nic.NewPort(conf, space, []nic.RxQueue{d.rx}, limits)
	testkit.OK(t, err)
	o.Space, o.Batch = space, toyBatch
	t.Cleanup(func() { d.port.Close() })
	d.tx = d.newTx(o)
	testkit.OK(t, d.port.Attach(sw, link))
	d.start()
	d.send(d.frame(wire.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, 0))
	d.tx.await(1)
	d.tx.sender.Stop()
	d.tx.done, d.tx.ring, d.tx.next = nil, nil, 0
	return d
}

func (d *toy) newTx(o nic.SenderOptions) *toyTx {
	q := &toyTx{space: o.Space, t: d.port.NewTransmitter(toyBatch), called: make(chan struct{}, 1),
		stopped: make(chan error, 1), failAt: -1}
	q.sender = testkit.Must(nic.NewSender(q, q.t, o))(d.t)
	d.t.Cleanup(q.sender.Close)
	return q
}

// toys makes n NICs on one switch.
func toys(t testing.TB, n int, o nic.SenderOptions) []*toy {
	t.Helper()
	sw := wire.NewSwitch(slog.New(slog.DiscardHandler))
	t.Cleanup(func() { _ = sw.Close() })
	var ds []*toy
	for i := range n {
		ds = append(ds, newToy(t, sw, byte(i+1), o, wire.LinkOptions{}))
	}
	return ds
}

// pair makes two NICs on one switch.
func pair(t testing.TB, o nic.SenderOptions) (a, b *toy) {
	ds := toys(t, 2, o)
	return ds[0], ds[1]
}

func (d *toy) start() { d.tx.sender.Start(-1, false) }

func (d *toy) frame(to wire.MAC, seq int) []byte {
	f := nictest.Make(to, d.mac, nictest.Spec{UDP: true, Payload: 100, Seq: uint32(seq)})
	return f.Bytes()
}

func (d *toy) send(frames ...[]byte) { d.tx.send(frames...) }

func (q *toyTx) send(frames ...[]byte) {
	q.mu.Lock()
	for _, b := range frames {
		q.ring = append(q.ring, []dma.Segment{dma.NewBuffer(b, dma.Host).Segment(0, uint32(len(b)))})
	}
	kick := q.kicks
	q.mu.Unlock()
	if kick {
		q.sender.Wake()
	}
}

// sendTo puts frames for another NIC, with these numbers, into d's transmit ring.
func (d *toy) sendTo(to *toy, seqs ...int) {
	for _, seq := range seqs {
		d.send(d.frame(to.mac, seq))
	}
}

// drops returns how many frames of the NIC's transmit queue were dropped, without the one that newToy sent, which
// no port took.
func (d *toy) drops() uint64 {
	_, tx := d.port.QueueCounters(0)
	return tx.Drops - 1
}

// receives waits for as many frames as seqs has numbers. The test fails unless they are frames of another NIC with
// these numbers, in this order.
func (d *toy) receives(from *toy, seqs ...int) {
	d.t.Helper()
	for _, seq := range seqs {
		if got, want := d.rx.receive(), from.frame(d.mac, seq); !bytes.Equal(got, want) {
			d.t.Fatalf("frame %d: got %x, want %x", seq, got, want)
		}
	}
}

// toyRx is a receive ring: buffers of 2 KiB.
type toyRx struct {
	nic.RxBase
	posted  []toyBuf // under the lock, as staged and came
	staged  []toyBuf
	came    []toyBuf
	refuses nic.Result    // if not PutTaken, Put returns it
	meets   func()        // called first by Put, if not nil
	called  chan struct{} // Call sends to it; capacity 1
}

type toyBuf struct {
	b   []byte
	seg []dma.Segment
}

func newToyBuf() toyBuf {
	b := make([]byte, 2048)
	return toyBuf{b: b, seg: []dma.Segment{dma.NewBuffer(b, dma.Host).Segment(0, 2048)}}
}

func (q *toyRx) post(bufs ...toyBuf) {
	q.Lock()
	defer q.Unlock()
	q.posted = append(q.posted, bufs...)
	q.WakeNext()
}

func (q *toyRx) postNew(n int) {
	for range n {
		q.post(newToyBuf())
	}
}

func (q *toyRx) receive() []byte {
	for {
		q.Lock()
		if len(q.came) > 0 {
			defer q.Unlock()
			b := q.came[0].b
			q.came = q.came[1:]
			return b
		}
		q.Unlock()
		<-q.called
	}
}

func (q *toyRx) Put(m *nic.Mover, f *nic.Frame) nic.Result {
	if q.meets != nil {
		q.meets()
	}
	if q.refuses != nic.PutTaken {
		return q.refuses
	}
	if len(q.posted) == 0 {
		return nic.PutNoBuffer
	}
	buf := q.posted[len(q.posted)-1]
	if f.Len() > 2048 {
		return nic.PutTooBig
	}
	buf.seg[0].Len = f.Len()
	err := m.Whole(buf.seg, f.Header, f.Payload)
	buf.b, buf.seg[0].Len = buf.b[:f.Len()], 2048
	if err != nil {
		return nic.PutFault
	}
	q.posted = q.posted[:len(q.posted)-1]
	q.staged = append(q.staged, buf)
	return nic.PutTaken
}

func (q *toyRx) Flush() (call bool) {
	call = len(q.staged) > 0
	q.came = append(q.came, q.staged...)
	q.staged = q.staged[:0]
	return call
}

func (q *toyRx) Call() { signal(q.called) }

func (q *toyRx) AwaitBuffers() bool { return len(q.posted) == 0 }

func (q *toyRx) Buffers() int { return len(q.posted) }

func (q *toyRx) Stopped(error) {}

// toyTx is a transmit ring.
type toyTx struct {
	space  *dma.Space
	t      *nic.Transmitter
	sender *nic.Sender

	mu    sync.Mutex
	ring  [][]dma.Segment
	next  int // index of the next frame to read
	kicks bool
	done  []int

	called  chan struct{} // Call sends to it; capacity 1
	stopped chan error

	keeps    bool // Abandon puts a frame back if Gather took no later one
	failAt   int  // Gather fails at this index
	goneAt   int  // Reload with moved returns false for the frame at this index
	failures bool

	// Used by the worker, and by the test while there is none.
	slots  [toyBatch]toySlot
	staged []int
	looks  int
	moved  bool
}

type toySlot struct {
	pos int
	buf [nic.MaxHeader]byte
}

var errToy = errors.New("bad descriptor")

func (q *toyTx) await(n int) (done []int) {
	for {
		q.mu.Lock()
		done = slices.Clone(q.done)
		q.mu.Unlock()
		if len(done) >= n {
			return done
		}
		<-q.called
	}
}

// waits waits until the sender has once tried to sleep for a busy receiver (SenderStats.Waits).
func (q *toyTx) waits() {
	for q.sender.Stats().Waits == 0 {
		runtime.Gosched()
	}
}

func (q *toyTx) Gather(free []*nic.TxFrame) (filled, taken int, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.looks++
	for filled < len(free) && q.next < len(q.ring) {
		if q.next == q.failAt {
			return filled, taken, errToy
		}
		f := free[filled]
		s := &q.slots[f.Slot]
		segs := q.ring[q.next]
		s.pos = q.next
		q.next++
		taken++
		if err := nic.ParseFrame(q.t.Worker.Copier, segs, 0, segs[0].Len, s.buf[:], &f.Packet); err != nil {
			q.t.Discard(wire.DropBadFrame)
			q.staged = append(q.staged, s.pos)
			continue
		}
		f.Packet.Prepare()
		filled++
	}
	return filled, taken, nil
}

func (q *toyTx) Reload(f *nic.TxFrame, moved bool) (ok bool, err error) {
	s := &q.slots[f.Slot]
	if q.failures {
		return false, errToy
	}
	if q.moved = q.moved || moved; moved && s.pos == q.goneAt {
		return false, nil
	}
	q.mu.Lock()
	segs := q.ring[s.pos]
	q.mu.Unlock()
	return true, nic.RelocatePayload(segs, 0, segs[0].Len, &f.Packet)
}

func (q *toyTx) Done(fs []*nic.TxFrame) error {
	for _, f := range fs {
		q.staged = append(q.staged, q.slots[f.Slot].pos)
	}
	return nil
}

func (q *toyTx) Abandon(f *nic.TxFrame) (kept bool) {
	s := &q.slots[f.Slot]
	if q.keeps && s.pos == q.next-1 {
		q.next--
		return true
	}
	q.staged = append(q.staged, s.pos)
	return false
}

func (q *toyTx) Publish() (call bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	call = len(q.staged) > 0
	q.done = append(q.done, q.staged...)
	q.staged = q.staged[:0]
	return call
}

func (q *toyTx) Call() { signal(q.called) }

func (q *toyTx) Pending() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.next < len(q.ring)
}

func (q *toyTx) Backlog() (frames int, full bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.ring) - q.next, false
}

func (q *toyTx) EnableKick() (more bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.kicks = true
	return q.next < len(q.ring)
}

func (q *toyTx) DisableKick() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.kicks = false
	q.looks++
}

func (q *toyTx) Idle([]*nic.TxFrame) {}

func (q *toyTx) Stopped(err error) { q.stopped <- err }

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func numbers(a, b int) (ns []int) {
	for i := a; i < b; i++ {
		ns = append(ns, i)
	}
	return ns
}

// patient is for tests in which frames wait, for at most a minute, until the test posts buffers.
var patient = nic.SenderOptions{Patience: time.Minute, Spin: true}

// Frames to a busy receiver wait, in order, while frames to others go on.
func TestSenderRetriesInOrder(t *testing.T) {
	ds := toys(t, 3, patient)
	a, busy, other := ds[0], ds[1], ds[2]
	other.rx.postNew(99)
	a.start()
	const n = 3 // 2*n frames fit into a batch
	for i := range n {
		a.send(a.frame(busy.mac, i), a.frame(other.mac, i))
	}
	other.receives(a, numbers(0, n)...)
	a.tx.waits()
	if done := a.tx.await(n); !slices.Equal(done, []int{1, 3, 5}) {
		t.Errorf("came back: %v", done)
	}
	busy.rx.postNew(n)
	busy.receives(a, numbers(0, n)...)
	a.tx.await(2 * n)
	// After a new start the sender has no state of the receiver other. Otherwise the sender could find busy slow, on a
	// loaded machine.
	a.tx.sender.Stop()
	a.start()
	a.sendTo(busy, numbers(n, 50)...) // most find no slot, and wait in the ring
	for i := n; i < 50; i++ {
		busy.rx.postNew(1)
		busy.receives(a, i)
	}
	done := a.tx.await(n + 50)
	if slices.Sort(done); !slices.Equal(done, numbers(0, n+50)) {
		t.Errorf("came back: %v", done)
	}
	if s := a.tx.sender.Stats(); s.GaveUp != 0 || s.PutBack != 0 {
		t.Errorf("%+v", s)
	}
}

// When patience ends, the sender drops, counts and completes the frames to a dead receiver.
func TestSenderGivesUp(t *testing.T) {
	ds := toys(t, 3, nic.SenderOptions{Patience: 5 * time.Millisecond})
	a, dead, other := ds[0], ds[1], ds[2]
	other.rx.postNew(99)
	a.start()
	for i := range 30 {
		a.send(a.frame(dead.mac, i), a.frame(other.mac, i))
	}
	other.receives(a, numbers(0, 30)...)
	a.tx.await(60)
	if s := a.tx.sender.Stats(); s.GaveUp != 30 || s.PutBack != 0 || a.drops() != 30 {
		t.Errorf("%+v, %d drops", s, a.drops())
	}
	dead.rx.postNew(1) // from now on frames to it arrive again
	a.sendTo(dead, 99)
	dead.receives(a, 99)
}

// With the default patience, a Sender sleeps while it waits.
func TestSenderSleepsForItsDefaultPatience(t *testing.T) {
	a, b := pair(t, nic.SenderOptions{})
	a.start()
	a.sendTo(b, 0)
	a.tx.await(1)
	if s := a.tx.sender.Stats(); s.GaveUp != 1 || s.Waits < 1 || s.Waits > 50 {
		t.Errorf("%+v", s)
	}
}

// A pause in which the Sender does not run does not end patience: it counts as an eighth of patience at most.
func TestSenderThatDidNotRunWaitsOn(t *testing.T) {
	const patience = 16 * time.Millisecond
	a, b := pair(t, nic.SenderOptions{Patience: patience})
	a.sendTo(b, 0)
	round := func() nic.SenderStats {
		testkit.Must(a.tx.sender.Round(false))(t)
		return a.tx.sender.Stats()
	}
	round()
	time.Sleep(5 * patience)
	if s := round(); s.GaveUp != 0 {
		t.Fatalf("given up after a stall: %+v", s)
	}
	looks := 1
	for ; round().GaveUp == 0; looks++ {
		time.Sleep(patience / 16)
	}
	if looks < 8 { // the time before each round counts as an eighth of patience at most
		t.Errorf("given up after %d looks", looks)
	}
}

// After a long frame, the next round takes at most as many new frames of its length as make 256 KiB.
func TestSenderTellsOfLongFramesSoon(t *testing.T) {
	const size, n = 60_000, 3 * toyBatch
	a, b := pair(t, patient)
	for i := range n { // no receiver takes frames of this size, which does not matter here
		f := nictest.Make(b.mac, a.mac, nictest.Spec{UDP: true, Payload: size, Seq: uint32(i)})
		a.send(f.Bytes())
	}
	dma.Guard()
	var rounds []int
	for done := 0; done < n; done = len(a.tx.done) {
		k := testkit.Must(a.tx.sender.Round(false))(t)
		rounds = append(rounds, k)
		testkit.Equal(t, "frames that came back", len(a.tx.done), done+k)
	}
	if !slices.Equal(rounds, []int{toyBatch, 4, 4, 4, 4}) { // 4 frames are nearly 256 KiB
		t.Errorf("rounds of %v frames", rounds)
	}
}

// Stop ends a Sender that holds frames. It drops frames that Abandon does not put back into the ring.
func TestSenderStopsWithFramesHeld(t *testing.T) {
	for _, keeps := range []bool{true, false} {
		t.Run(fmt.Sprint("keeps=", keeps), func(t *testing.T) {
			a, b := pair(t, patient)
			a.tx.keeps = keeps
			const n = toyBatch + 3
			a.sendTo(b, numbers(0, n)...)
			a.start()
			a.tx.waits()
			a.tx.sender.Stop()
			first := 0
			want := nic.SenderStats{PutBack: toyBatch}
			if !keeps {
				first, want = toyBatch, nic.SenderStats{GaveUp: toyBatch}
			}
			got := a.tx.sender.Stats()
			if got.Waits = 0; got != want || a.tx.next != first || len(a.tx.done) != first {
				t.Errorf("%+v, want %+v; %d frames are the driver's, %v came back", got, want, n-a.tx.next, a.tx.done)
			}
			b.rx.postNew(n)
			a.start()
			b.receives(a, numbers(first, n)...)
			a.tx.await(n)
		})
	}
}

// An error of Gather stops the queue after the frames before it are sent, and a new start begins with the frame at
// which it failed. An error of Reload stops the queue, and the Sender drops the held frames that Abandon does not put
// back.
func TestSenderStopsOnAnError(t *testing.T) {
	t.Run("new", func(t *testing.T) {
		a, b := pair(t, patient)
		b.rx.postNew(9)
		a.sendTo(b, numbers(0, 6)...)
		a.tx.failAt = 4
		a.start()
		if err := <-a.tx.stopped; !errors.Is(err, errToy) {
			t.Error(err)
		}
		b.receives(a, 0, 1, 2, 3)
		a.tx.sender.Stop()
		if done := a.tx.await(4); !slices.Equal(done, numbers(0, 4)) || a.tx.next != 4 {
			t.Errorf("came back: %v; next is %d", done, a.tx.next)
		}
		a.tx.failAt = -1
		a.start()
		b.receives(a, 4, 5)
	})
	t.Run("held", func(t *testing.T) {
		a, b := pair(t, patient)
		a.tx.failures = true
		a.sendTo(b, 0, 1)
		a.start()
		a.tx.waits()
		b.rx.postNew(1)
		if err := <-a.tx.stopped; !errors.Is(err, errToy) {
			t.Error(err)
		}
		a.tx.sender.Stop()
		if s := a.tx.sender.Stats(); s.GaveUp != 2 || len(a.tx.done) != 2 {
			t.Errorf("%+v, came back: %v", s, a.tx.done)
		}
	})
}

// The Sender tells Reload if mappings have changed, and drops a held frame whose memory is gone.
func TestSenderFindsHeldFramesAgain(t *testing.T) {
	for _, change := range []bool{true, false} {
		t.Run(fmt.Sprint("changed=", change), func(t *testing.T) {
			a, b := pair(t, patient)
			a.tx.goneAt = 1
			a.sendTo(b, 0, 1, 2)
			a.start()
			a.tx.waits()
			want := numbers(0, 3)
			if change {
				want = []int{0, 2}
				testkit.OK(t, a.tx.space.Add(dma.Map{IOVA: 1 << 20, Size: 4096, FD: -1, NoAccess: true}))
				t.Cleanup(func() { _ = a.tx.space.Close() })
			}
			b.rx.postNew(3)
			b.receives(a, want...)
			a.tx.await(3)
			a.tx.sender.Stop()
			if a.tx.moved != change || a.drops() != uint64(3-len(want)) {
				t.Errorf("told of a change: %v; %d drops", a.tx.moved, a.drops())
			}
		})
	}
}

// With kickFirst the worker does not read the ring before the first kick.
func TestSenderStartsWithTheFirstKick(t *testing.T) {
	a, b := pair(t, patient)
	b.rx.postNew(9)
	fd := eventFD(t)
	a.sendTo(b, 0) // kicks are disabled: this does not call Wake
	looks := a.tx.looks
	a.tx.sender.Start(fd, true)
	a.tx.sender.Wake()
	a.tx.sender.Stop()
	if a.tx.looks != looks {
		t.Error("the ring was looked at before it was kicked")
	}
	a.tx.sender.Start(fd, true)
	write(t, fd, one)
	b.receives(a, 0)
	for i := 1; i < 9; i++ {
		a.tx.mu.Lock()
		a.tx.kicks = false
		a.tx.mu.Unlock()
		a.sendTo(b, i)
		write(t, fd, one)
		b.receives(a, i)
	}
}

// With Drain, Stop sends the frames in the ring to receivers that take them, and drops the rest.
func TestSenderDrains(t *testing.T) {
	ds := toys(t, 3, nic.SenderOptions{Patience: time.Minute, Drain: true})
	a, b, dead := ds[0], ds[1], ds[2]
	b.rx.postNew(100)
	for i := range 100 {
		a.send(a.frame(b.mac, i), a.frame(dead.mac, i))
	}
	a.start()
	a.tx.sender.Stop()
	if s := a.tx.sender.Stats(); len(a.tx.done) != 200 || s.GaveUp != 100 {
		t.Errorf("%d frames came back, %+v", len(a.tx.done), s)
	}
	for b.rx.receive(); len(b.rx.came) > 0; {
		b.rx.receive()
	}
}

// A frame or a buffer posted while the sender is about to sleep is not missed.
func TestSenderMissesNoWake(t *testing.T) {
	for _, spin := range []bool{true, false} {
		t.Run(fmt.Sprint("spin=", spin), func(t *testing.T) {
			o := patient
			o.Spin = spin
			a, b := pair(t, o)
			a.start()
			for i := range 3000 {
				a.sendTo(b, i%200)
				if i%2 == 0 {
					runtime.Gosched()
				}
				b.rx.postNew(1)
				b.receives(a, i%200)
				a.tx.await(i + 1)
			}
			if s := a.tx.sender.Stats(); s.GaveUp != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// The Sender drops at least half of the frames to a receiver that takes few, so that those to another one go on.
//
// On a loaded machine the sender may have sent to no other receiver for a second, and then no receiver is slow:
// the test tries up to three times.
func TestSlowReceiverKeepsNobodyWaiting(t *testing.T) {
	const n = 200
	var s nic.SenderStats
	for range 3 {
		if s = besideASlowReceiver(t, n); s.Slow >= n/2 && s.Slow == s.GaveUp {
			return
		}
	}
	t.Errorf("%+v", s)
}

// besideASlowReceiver sends n frames each to a receiver that takes few and to one that takes all, and returns the
// Sender's counters.
func besideASlowReceiver(t *testing.T, n int) nic.SenderStats {
	ds := toys(t, 3, nic.SenderOptions{Patience: 2 * time.Second, Spin: true})
	a, slow, other := ds[0], ds[1], ds[2]
	other.rx.postNew(n)
	a.start()
	for i := range n {
		a.send(a.frame(slow.mac, i), a.frame(other.mac, i))
	}
	for i := range n {
		if i%50 == 0 {
			slow.rx.postNew(1)
		}
		other.receives(a, i)
	}
	s := a.tx.sender.Stats()
	a.tx.sender.Stop()
	var dropped uint64
	for _, l := range a.sw.Links() {
		dropped += l.Counters().Drops[wire.DropSlowReceiver]
	}
	testkit.Equal(t, "drops for a slow receiver", dropped, s.Slow)
	return s
}

// BenchmarkSlowReceiver sends frames to two receivers in turn. One of them takes at most as many frames a second as the
// sub-benchmark's name says. share is the rate of the other one, relative to its rate when both take all frames.
func BenchmarkSlowReceiver(b *testing.B) {
	const frames = 100_000 // to each receiver
	run := func(b *testing.B, perSecond int) time.Duration {
		ds := toys(b, 3, nic.SenderOptions{Spin: true})
		a, slow, other := ds[0], ds[1], ds[2]
		a.start()
		toSlow, toOther := a.frame(slow.mac, 0), a.frame(other.mac, 0)
		start := time.Now()
		posted, sent := 0, 0
		for got := 0; got < frames; got++ {
			for ; sent < frames && sent-got < 256; sent += 16 {
				other.rx.postNew(16)
				if perSecond < 0 {
					slow.rx.postNew(16)
				}
				for range 16 {
					a.send(toSlow, toOther)
				}
			}
			for ; perSecond > 0 && posted < int(time.Since(start).Seconds()*float64(perSecond)); posted++ {
				slow.rx.postNew(1)
			}
			other.rx.receive()
		}
		return time.Since(start)
	}
	for _, perSecond := range []int{0, 50, 1000} {
		b.Run(fmt.Sprint(perSecond), func(b *testing.B) {
			var share float64
			for b.Loop() {
				share += float64(run(b, -1)) / float64(run(b, perSecond))
			}
			b.ReportMetric(share/float64(b.N), "share")
		})
	}
}

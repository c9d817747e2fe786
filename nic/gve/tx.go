package gve

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/nic"
	"vnic.dev/vnic/wire"
)

// txBatch is how many packets of a queue are under way at one time, those that wait for a busy receiver included.
const txBatch = 32

// txQueue is a transmit queue. While it is started a worker, a goroutine locked to a thread, owns all but the marked fields.
//
// A descriptor is the driver's again when it is read, which a completion of its own says if asked for; a packet's buffers
// are when the packet is disposed of, which its completion says. So what waits for a busy receiver holds up no descriptors,
// and is never given back: it is sent, or dropped.
//
// start, stop, doorbell, unmapping and close belong to the control goroutine.
type txQueue struct {
	*shared
	id     int
	t      *nic.Transmitter
	sleep  *nic.Sleeper
	tail   atomic.Uint32 // as the doorbell says: where the driver posts next
	ending atomic.Bool   // set by the control goroutine, which then wakes
	done   chan struct{} // closed by the worker; nil: no worker. Control goroutine

	p       txParams // set before the worker starts, as the rings
	in, out ring     // descriptors; completions
	head    uint32   // the next descriptor to be read, counted since the start
	compl   uint32   // the next completion to be written, likewise
	partly  uint32   // what the tail was when the packet at head was not whole; noTail: it may be
	fired   uint32   // completions that the driver has been told of

	// Packets under way: slots[:used], oldest first. Those held since an earlier round come first. The others are free.
	slots [txBatch]*txSlot
	used  int
	batch [txBatch]*wire.Packet // slots' packets, in the same order
	seen  uint64                // generation of the space for which the held packets' segments are good

	busy     *nic.Waits
	patience nic.Patience
	count    struct{ bad, unmapped, gaveUp, waits counter }
}

// noTail is no value of tail.
const noTail = ^uint32(0)

// newTxQueue makes a stopped queue, which close lets go of. The port exists already.
func newTxQueue(s *shared, id int, p *nic.Port) (*txQueue, error) {
	sleep, err := nic.NewSleeper()
	if err != nil {
		return nil, err
	}
	q := &txQueue{shared: s, id: id, t: p.NewTransmitter(txBatch), sleep: sleep, busy: nic.NewWaits(sleep, txBatch)}
	if q.patience.Limit = s.patience; s.patience == 0 {
		q.patience.Limit = nic.DefaultPatience
	}
	for i := range q.slots {
		q.slots[i] = new(txSlot)
	}
	return q, nil
}

// start begins with empty rings, which the driver has zeroed.
func (q *txQueue) start(p txParams) error {
	q.stop()
	if err := q.in.pin(q.space, p.desc, p.size, txDescLen); err != nil {
		return fmt.Errorf("transmit queue %d: descriptors: %w", q.id, err)
	}
	if err := q.out.pin(q.space, p.compl, p.complSize, txComplLen); err != nil {
		q.in.close()
		return fmt.Errorf("transmit queue %d: completions: %w", q.id, err)
	}
	q.p, q.head, q.compl, q.fired, q.partly = p, 0, 0, 0, noTail
	q.tail.Store(0)
	q.ending.Store(false)
	done := make(chan struct{})
	q.done = done
	dma.Go(func() {
		defer close(done)
		nic.Work(func() {
			err := q.run()
			q.patience.Reset()
			if err != nil {
				q.failed(true, q.id, fmt.Errorf("transmit queue %d: %w", q.id, err))
			}
		})
	})
	return nil
}

// stop returns when nothing touches rings or buffers any more. What was read from the ring is sent, or dropped.
func (q *txQueue) stop() {
	if q.done == nil {
		return
	}
	q.ending.Store(true)
	q.sleep.Wake()
	<-q.done
	q.done = nil
	q.in.close()
	q.out.close()
}

// doorbell says that descriptors are posted up to tail. An error has stopped the queue, and failed was told.
func (q *txQueue) doorbell(tail uint32) error {
	if q.done == nil {
		return nil
	}
	if err := checkTail(tail, &q.in); err != nil {
		return q.fail(err)
	}
	q.tail.Store(tail)
	q.sleep.Wake()
	return nil
}

// unmapping stops the queue, and has failed told, if one of its rings lies in [iova, iova+n).
func (q *txQueue) unmapping(iova, n uint64) {
	if q.done != nil && (q.in.overlaps(iova, n) || q.out.overlaps(iova, n)) {
		_ = q.fail(errUnmapped)
	}
}

func (q *txQueue) fail(err error) error {
	q.stop()
	err = fmt.Errorf("transmit queue %d: %w", q.id, err)
	q.failed(true, q.id, err)
	return err
}

// close lets go of the queue, for good.
func (q *txQueue) close() {
	q.stop()
	q.sleep.Close()
}

// run moves packets until the queue is told to stop, or until something of it is broken.
func (q *txQueue) run() error {
	cores := runtime.GOMAXPROCS(0)
	for {
		ending := q.ending.Load()
		n, err := q.round(ending)
		if err != nil || ending {
			q.letGo()
			return err
		}
		switch {
		case q.used > 0:
			err = q.waitBusy()
		case n == 0:
			err = q.waitFrames(cores)
		}
		if err != nil {
			q.letGo()
			return err
		}
	}
}

// round sends what is held and what is new, and completes what came of it. If last, nothing new is taken.
func (q *txQueue) round(last bool) (n int, err error) {
	tok := q.space.Enter()
	n, err = q.exchange(last)
	q.space.Leave(tok)
	q.fire()
	return n, err
}

func (q *txQueue) fire() {
	if q.fired != q.compl {
		q.fired = q.compl
		q.notify.fire(q.p.notify)
	}
}

// exchange does so inside the epoch. After an error, what was good before it has been sent.
func (q *txQueue) exchange(last bool) (n int, err error) {
	if q.used > 0 {
		if err = q.reload(); err != nil {
			return 0, err
		}
	}
	if !last {
		n, err = q.gather()
	}
	if q.used > 0 {
		for i := range q.used {
			q.batch[i] = &q.slots[i].pkt
		}
		q.t.Send(q.batch[:q.used])
		if e := q.settle(); err == nil {
			err = e
		}
	}
	return n, err
}

// settle completes the packets that are disposed of, and keeps those that met a busy receiver.
func (q *txQueue) settle() (err error) {
	defer dma.Recover(&err)
	var now time.Time
	kept := 0
	for i := range q.used {
		s := q.slots[i]
		if s.pkt.Verdict.Kind == wire.Busy {
			if now.IsZero() {
				now = time.Now()
			}
			if s.since.IsZero() {
				s.since = now
			}
			if q.patience.ShouldWait(s.pkt.Verdict.Queue, nic.Window{From: s.since, To: now}) {
				q.slots[kept], q.slots[i] = q.slots[i], q.slots[kept]
				kept++
				continue
			}
			q.count.gaveUp.add(1)
			q.t.Dropped(&s.pkt)
		}
		q.finish(txPacketDone, s.tag)
	}
	q.used = kept
	return nil
}

// finish writes a completion. The caller guards it with dma.Recover.
func (q *txQueue) finish(kind, value uint16) {
	b := q.out.at(q.compl)
	le.PutUint32(b[4:], 0)
	word := txComplWord(q.id, kind, value)
	if q.out.even(q.compl) {
		word |= txGeneration
	}
	dma.StoreWord(b, word)
	q.compl++
}

// letGo drops everything held, as the queue stops.
func (q *txQueue) letGo() {
	for ; q.used > 0; q.used-- {
		q.count.gaveUp.add(1)
		q.t.Dropped(&q.slots[q.used-1].pkt)
	}
}

// pending tells whether the driver has posted something that was not looked at.
func (q *txQueue) pending() bool {
	tail := q.tail.Load()
	return tail != q.head&q.in.mask && tail != q.partly
}

// waitFrames waits for the driver: first busily, if there are cores to spare, then asleep.
func (q *txQueue) waitFrames(cores int) error {
	if nic.MaySpin(cores) {
		for end := time.Now().Add(nic.Spin); ; {
			if q.pending() || q.ending.Load() {
				return nil
			}
			if time.Now().After(end) {
				break
			}
		}
	}
	q.sleep.Park()
	if q.pending() || q.ending.Load() {
		q.sleep.Unpark()
		return nil
	}
	_, err := q.sleep.Sleep(-1, -1)
	return err
}

// waitBusy sleeps until a receiver of held packets has buffers, the driver has more packets and we have room for them, or
// patience ends.
func (q *txQueue) waitBusy() error {
	q.count.waits.add(1)
	q.sleep.Park()
	defer q.sleep.Unpark()
	defer q.busy.End()
	for _, s := range q.slots[:q.used] {
		if !q.busy.Add(s.pkt.Verdict.Queue, s.since) {
			return nil
		}
	}
	if q.used < txBatch && q.pending() || q.ending.Load() {
		return nil
	}
	_, err := q.sleep.Sleep(-1, q.busy.Left(q.patience.Limit))
	return err
}

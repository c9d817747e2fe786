package virtio

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/nic"
	"vnic.dev/vnic/virtq"
	"vnic.dev/vnic/wire"
)

// txBatch is how many frames are under way at one time, those that wait for a busy receiver included.
const txBatch = 32

// txQueue is a transmit virtqueue. Its worker, a goroutine locked to a thread, owns all but the marked fields.
type txQueue struct {
	dev   *Device
	index int
	t     *nic.Transmitter
	call  call // any goroutine
	fault call // likewise: the error descriptor

	enabled atomic.Bool // set by the control goroutine
	stop    atomic.Bool // set by the control goroutine, which then wakes
	sleep   *nic.Sleeper
	done    chan struct{} // closed by the worker; nil: no worker. Control goroutine
	kick    int
	vq      *virtq.Device

	// Frames under way: chains[:used] with their slots, oldest first. Those held since an earlier round come first. What
	// was in use moves to the front; the slots and chains behind it are free.
	chains [txBatch]virtq.Chain
	slots  [txBatch]*txSlot
	used   int
	batch  [txBatch]*wire.Packet // slots' packets, in the same order

	next     uint16 // avail index of the chain to be peeked next
	busy     *nic.Waits
	patience nic.Patience
	seen     uint64  // generation of the space for which the held chains' segments are good
	disabled counter // frames consumed and dropped while the queue was not enabled
	bad      counter // frames that were none
	waits    counter // sleeps for a busy receiver
	gaveUp   counter // frames dropped after waiting
	putBack  counter // frames that waited when the queue was stopped, and were left to the driver
}

// txSlot is one frame under way.
type txSlot struct {
	pkt   wire.Packet
	buf   [netHdrLen + nic.MaxHeader]byte // virtio_net_hdr and headers
	at    uint16                          // avail index of its chain
	since time.Time                       // held since, for a busy receiver
}

func newTxQueue(d *Device, index int) (*txQueue, error) {
	q := &txQueue{dev: d, index: index, kick: -1, call: call{lines: &d.lines}, fault: call{lines: &d.lines}, t: d.port.NewTransmitter(txBatch)}
	q.patience.Limit = d.conf.Patience
	for i := range q.slots {
		q.slots[i] = new(txSlot)
	}
	var err error
	if q.sleep, err = nic.NewSleeper(); err != nil {
		return nil, err
	}
	q.busy = nic.NewWaits(q.sleep, txBatch)
	return q, nil
}

// start runs the worker; the queue is stopped. A queue that was running before needs no kick to begin.
func (q *txQueue) start(running bool) {
	q.stop.Store(false)
	q.next = q.vq.Base()
	done := make(chan struct{})
	q.done = done
	dma.Go(func() {
		defer close(done)
		nic.Work(func() {
			err := q.run(running)
			q.patience.Reset()
			if err != nil {
				q.dev.note(q.index, err)
				q.dev.failed(q.index, err)
				q.fault.fire()
			}
		})
	})
}

// run moves frames until the queue is told to stop, or until something of it is broken.
func (q *txQueue) run(kicked bool) error {
	for !kicked { // "A ring starts when its kick descriptor is first readable"
		q.sleep.Park()
		if q.stop.Load() {
			q.sleep.Unpark()
			return nil
		}
		var err error
		if kicked, err = q.sleep.Sleep(q.kick, -1); err != nil {
			return err
		}
	}
	q.vq.DisableKick()
	cores := runtime.GOMAXPROCS(0)
	for {
		stopping := q.stop.Load()
		n, err := q.round(stopping)
		if err != nil || stopping {
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

// round sends what is held and what is new, and commits what came of it. If last, nothing new is taken.
func (q *txQueue) round(last bool) (n int, err error) {
	tok := q.dev.space.Enter()
	call, n, err := q.exchange(last)
	q.dev.space.Leave(tok)
	if call {
		q.call.fire()
	}
	return n, err
}

// exchange does so inside the epoch. After an error, what was good before it has been sent.
func (q *txQueue) exchange(last bool) (call bool, n int, err error) {
	if q.used > 0 {
		err = q.reload()
	}
	if err == nil && !last {
		n, err = q.gather()
	}
	if q.used > 0 && (err == nil || n > 0) {
		for i := range q.used {
			q.batch[i] = &q.slots[i].pkt
		}
		q.t.Send(q.batch[:q.used])
		q.settle()
	}
	return q.vq.Publish(), n, err
}

// reload finds the memory of held frames again, if the map has changed while we slept.
func (q *txQueue) reload() error {
	g := q.dev.space.Generation()
	for i := range q.used {
		c, s := &q.chains[i], q.slots[i]
		if g != q.seen {
			if err := q.vq.Load(c.Head, c); err != nil {
				return err
			}
		}
		if err := nic.Again(c.Out, netHdrLen, c.OutLen, &s.pkt); err != nil {
			return fmt.Errorf("%w: head %d: %w", virtq.ErrBadChain, c.Head, err)
		}
	}
	q.seen = g
	return nil
}

// gather takes new frames, as many as there is room for, and returns how many chains these were.
func (q *txQueue) gather() (n int, err error) {
	if q.used == txBatch {
		return 0, nil
	}
	if q.used == 0 {
		q.seen = q.dev.space.Generation()
	}
	n, err = q.vq.PeekBatch(q.chains[q.used:])
	enabled := q.enabled.Load()
	for i, end := q.used, q.used+n; i < end; i++ {
		c, s := &q.chains[i], q.slots[q.used]
		s.at = q.next
		q.next++
		if !enabled {
			q.disabled.add(1)
			q.vq.Commit(c.Head, 0)
			continue
		}
		if e := q.describe(c, s); e != nil {
			if !errors.Is(e, nic.ErrBadFrame) { // the queue ends here: what comes behind it stays the driver's
				q.vq.Rewind(end - i)
				return i, e
			}
			q.bad.add(1) // a frame that is none harms nobody: gone
			q.vq.Commit(c.Head, 0)
			continue
		}
		if i != q.used {
			q.chains[i], q.chains[q.used] = q.chains[q.used], q.chains[i]
		}
		q.used++
	}
	return n, err
}

// describe makes a packet of a chain: virtio_net_hdr, then the frame.
func (q *txQueue) describe(c *virtq.Chain, s *txSlot) error {
	if c.InLen > 0 {
		return fmt.Errorf("%w: head %d: device-writable buffer on a transmit queue", virtq.ErrBadChain, c.Head)
	}
	if err := nic.Describe(q.t.Worker.Copier, c.Out, netHdrLen, c.OutLen, s.buf[:], &s.pkt); err != nil {
		return err
	}
	var h netHdr
	h.decode((*[netHdrLen]byte)(s.buf[:]))
	if err := h.meta(&s.pkt.Meta, q.dev.features.Load()); err != nil {
		return err
	}
	s.pkt.Prepare()
	s.since = time.Time{}
	return nil
}

// settle commits the frames that are disposed of, and keeps those that met a busy receiver.
func (q *txQueue) settle() {
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
				q.keep(kept, i)
				kept++
				continue
			}
			q.gaveUp.add(1)
			q.t.Dropped(&s.pkt)
		}
		q.vq.Commit(q.chains[i].Head, 0)
	}
	q.used = kept
}

// keep moves frame i to place k.
func (q *txQueue) keep(k, i int) {
	if k != i {
		q.chains[k], q.chains[i] = q.chains[i], q.chains[k]
		q.slots[k], q.slots[i] = q.slots[i], q.slots[k]
	}
}

// letGo lets go of everything held, as the queue stops. The driver keeps what it can be left: the frames behind which
// none was taken, for the next start. The rest is gone.
func (q *txQueue) letGo() {
	for ; q.used > 0; q.used-- {
		s, c := q.slots[q.used-1], &q.chains[q.used-1]
		if s.at == q.vq.Base()-1 {
			q.vq.Rewind(1)
			q.putBack.add(1)
			continue
		}
		q.gaveUp.add(1)
		q.t.Dropped(&s.pkt)
		q.vq.Commit(c.Head, 0)
	}
	if q.vq.Publish() {
		q.call.fire()
	}
}

// waitFrames waits for the driver: first busily, if there are cores to spare, then asleep.
func (q *txQueue) waitFrames(cores int) error {
	if nic.MaySpin(cores) {
		for end := time.Now().Add(nic.Spin); ; {
			if q.vq.Pending() || q.stop.Load() {
				return nil
			}
			if time.Now().After(end) {
				break
			}
		}
	}
	q.sleep.Park()
	if q.stop.Load() || q.vq.EnableKick() {
		q.sleep.Unpark()
		q.vq.DisableKick()
		return nil
	}
	_, err := q.sleep.Sleep(q.kick, -1)
	q.vq.DisableKick()
	return err
}

// halt ends the worker after a last round, in which held frames are sent once more.
func (q *txQueue) halt() {
	if q.done == nil {
		return
	}
	q.stop.Store(true)
	q.sleep.Wake()
	<-q.done
	q.done = nil
}

// waitBusy sleeps until a receiver of held frames has buffers, the driver has more frames and we have room for them, or
// patience ends.
func (q *txQueue) waitBusy() error {
	q.waits.add(1)
	q.sleep.Park()
	defer q.sleep.Unpark()
	defer q.busy.End()
	for _, s := range q.slots[:q.used] {
		if !q.busy.Add(s.pkt.Verdict.Queue, s.since) {
			return nil
		}
	}
	if q.stop.Load() || q.used < txBatch && q.vq.EnableKick() {
		q.vq.DisableKick()
		return nil
	}
	_, err := q.sleep.Sleep(q.kick, q.busy.Left(q.patience.Limit))
	q.vq.DisableKick()
	return err
}

package virtio

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/nic"
	"vnic.dev/vnic/virtq"
	"vnic.dev/vnic/wire"
)

const (
	// txBatch is how many frames are under way at one time, those that wait for a busy receiver included.
	txBatch = 32
	// txPatience is how long a frame waits for a receiver without buffers before it is dropped.
	txPatience = 500 * time.Millisecond
	// txGrudge is how long after that frames to the same receiver are not waited for at all, unless it gets buffers.
	txGrudge = 2 * time.Second
	// txSpin bounds the busy wait for the next frame.
	txSpin = 50 * time.Microsecond
)

// workers counts the transmit workers of the process that run now. Where they outnumber the cores none of them spins.
var workers atomic.Int32

// txQueue is a transmit virtqueue. Its worker, a goroutine locked to a thread, owns all but the marked fields.
type txQueue struct {
	dev   *Device
	index int
	t     *nic.Transmitter
	call  atomic.Pointer[os.File] // any goroutine

	enabled atomic.Bool // set by the control goroutine
	stop    atomic.Bool // set by the control goroutine, which then wakes
	wake    event
	done    chan struct{} // closed by the worker; nil: no worker. Control goroutine
	kick    int
	vq      *virtq.Device
	err     atomic.Pointer[error] // why the worker ended

	slots [txBatch]txSlot
	order [txBatch]*txSlot // slots in use, oldest first: frames held since an earlier round, then new ones
	used  int
	batch [txBatch]*wire.Packet
	idle  []*txSlot

	segs     []dma.Segment
	grudge   wire.Waitable // a receiver that was waited for in vain
	until    time.Time
	disabled counter // frames consumed and dropped while the queue was not enabled
	bad      counter // frames that were none
	waits    counter // sleeps for a busy receiver
	gaveUp   counter // frames dropped after waiting
}

// txSlot is one frame under way.
type txSlot struct {
	chain virtq.Chain
	pkt   wire.Packet
	hdr   [nic.MaxHeader]byte
	since time.Time // held since, for a busy receiver
}

func newTxQueue(d *Device, index int) (*txQueue, error) {
	q := &txQueue{dev: d, index: index, kick: -1, t: d.port.NewTransmitter(txBatch)}
	var err error
	q.wake, err = newEvent()
	for i := range q.slots {
		q.idle = append(q.idle, &q.slots[i])
	}
	return q, err
}

// start runs the worker; the queue is stopped. A queue that was running before needs no kick to begin.
func (q *txQueue) start(running bool) {
	q.stop.Store(false)
	q.err.Store(nil)
	done := make(chan struct{})
	q.done = done
	dma.Go(func() {
		defer close(done)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		workers.Add(1)
		defer workers.Add(-1)
		if err := q.run(running); err != nil {
			q.err.Store(&err)
			q.dev.watcher.failed(q.index)
		}
	})
}

// run moves frames until the queue is told to stop, or until something of it is broken.
func (q *txQueue) run(kicked bool) error {
	for !kicked { // "A ring starts when its kick descriptor is first readable"
		if q.stop.Load() {
			return nil
		}
		var err error
		if _, kicked, err = sleep(q.wake.fd, q.kick, -1); err != nil {
			return err
		}
	}
	q.vq.DisableKick()
	for {
		stopping := q.stop.Load()
		n, err := q.round(stopping)
		if err != nil {
			q.abandon()
			return err
		}
		if stopping {
			return nil
		}
		switch {
		case q.used > 0:
			err = q.waitBusy()
		case n == 0:
			err = q.waitFrames()
		}
		if err != nil {
			q.abandon()
			return err
		}
	}
}

// round sends what is held and what is new, and commits what came of it. If last, nothing stays held and nothing new is
// taken.
func (q *txQueue) round(last bool) (n int, err error) {
	tok := q.dev.space.Enter()
	call, n, err := q.exchange(last)
	q.dev.space.Leave(tok)
	if call {
		signal(q.call.Load())
	}
	return n, err
}

func (q *txQueue) exchange(last bool) (call bool, n int, err error) {
	held := q.used
	for i := range held { // the memory map may have changed while we slept
		s := q.order[i]
		if err := q.vq.Load(s.chain.Head, &s.chain); err != nil {
			return false, 0, err
		}
		if err := q.place(s); err != nil {
			return false, 0, err
		}
	}
	for !last && len(q.idle) > 0 {
		s := q.idle[len(q.idle)-1]
		ok, err := q.vq.Peek(&s.chain)
		if err != nil {
			return q.vq.Publish(), n, err
		}
		if !ok {
			break
		}
		n++
		if !q.enabled.Load() {
			q.disabled.add(1)
			q.vq.Commit(s.chain.Head, 0)
			continue
		}
		if err := q.describe(s); err != nil {
			if !errors.Is(err, nic.ErrBadFrame) {
				return q.vq.Publish(), n, err
			}
			q.bad.add(1) // a frame that is none harms nobody: gone
			q.vq.Commit(s.chain.Head, 0)
			continue
		}
		q.idle = q.idle[:len(q.idle)-1]
		q.order[q.used] = s
		q.used++
	}
	if q.used == 0 {
		return q.vq.Publish(), n, nil
	}
	for i, s := range q.order[:q.used] {
		q.batch[i] = &s.pkt
	}
	q.t.Send(q.batch[:q.used])
	q.settle(last)
	return q.vq.Publish(), n, nil
}

// settle commits the frames that are disposed of, and keeps those that met a busy receiver.
func (q *txQueue) settle(last bool) {
	var now time.Time
	kept := 0
	for _, s := range q.order[:q.used] {
		if s.pkt.Verdict.Kind == wire.Busy {
			if now.IsZero() {
				now = time.Now()
			}
			if s.since.IsZero() {
				s.since = now
			}
			if !last && !q.tired(s, now) {
				q.order[kept] = s
				kept++
				continue
			}
			q.gaveUp.add(1)
			q.t.Dropped(&s.pkt)
		}
		s.since = time.Time{}
		q.vq.Commit(s.chain.Head, 0)
		q.idle = append(q.idle, s)
	}
	q.used = kept
}

// tired says whether a held frame has waited long enough.
func (q *txQueue) tired(s *txSlot, now time.Time) bool {
	w := s.pkt.Verdict.Queue
	if w == q.grudge && now.Before(q.until) {
		return true
	}
	if now.Sub(s.since) < txPatience {
		return false
	}
	q.grudge, q.until = w, now.Add(txGrudge)
	return true
}

// describe makes a packet of a chain: virtio_net_hdr, then the frame.
func (q *txQueue) describe(s *txSlot) error {
	c := &s.chain
	if c.InLen > 0 {
		return fmt.Errorf("%w: head %d: device-writable buffer on a transmit queue", virtq.ErrBadChain, c.Head)
	}
	if c.OutLen < netHdrLen {
		return fmt.Errorf("%w: %d bytes, less than virtio_net_hdr", nic.ErrBadFrame, c.OutLen)
	}
	var b [netHdrLen]byte
	if _, err := q.t.Worker.Copier.Read(b[:], c.Out); err != nil {
		return err
	}
	var h netHdr
	h.decode(&b)
	if err := q.place(s); err != nil {
		return err
	}
	if err := h.meta(&s.pkt.Meta, q.dev.features.Load()); err != nil {
		return err
	}
	s.pkt.Progress = wire.Progress{}
	s.pkt.Prepare()
	return nil
}

// place says where the frame's headers and payload lie.
func (q *txQueue) place(s *txSlot) error {
	n := s.chain.OutLen - netHdrLen
	q.segs = dma.Cut(q.segs[:0], s.chain.Out, netHdrLen, uint64(n))
	meta := s.pkt.Meta
	err := nic.Describe(q.t.Worker.Copier, q.segs, n, s.hdr[:], &s.pkt)
	meta.Headers = s.pkt.Meta.Headers
	s.pkt.Meta = meta
	return err
}

// waitBusy sleeps until a receiver of held frames has buffers, the driver has more frames and we have room for them, or
// patience ends.
func (q *txQueue) waitBusy() error {
	q.waits.add(1)
	oldest := q.order[0].since
	armed := 0
	defer func() {
		for _, s := range q.order[:armed] {
			s.pkt.Verdict.Queue.Disarm(q.wake)
		}
	}()
	var last wire.Waitable
	for _, s := range q.order[:q.used] {
		w := s.pkt.Verdict.Queue
		if w != last && !w.Arm(q.wake) {
			return nil
		}
		last = w
		armed++
	}
	if len(q.idle) > 0 && q.vq.EnableKick() {
		q.vq.DisableKick()
		return nil
	}
	_, _, err := sleep(q.wake.fd, q.kick, max(0, txPatience-time.Since(oldest)))
	q.vq.DisableKick()
	return err
}

// waitFrames waits for the driver: first busily, if there are cores to spare, then asleep.
func (q *txQueue) waitFrames() error {
	if int(workers.Load()) < runtime.GOMAXPROCS(0) {
		for end := time.Now().Add(txSpin); ; {
			if q.vq.Pending() || q.stop.Load() {
				return nil
			}
			if time.Now().After(end) {
				break
			}
		}
	}
	if q.vq.EnableKick() {
		q.vq.DisableKick()
		return nil
	}
	_, _, err := sleep(q.wake.fd, q.kick, -1)
	q.vq.DisableKick()
	return err
}

// abandon lets go of everything held, as the queue stops for good.
func (q *txQueue) abandon() {
	for _, s := range q.order[:q.used] {
		s.since = time.Time{}
		q.t.Dropped(&s.pkt)
		q.idle = append(q.idle, s)
	}
	q.used = 0
}

// halt ends the worker after a last round, in which held frames are sent or dropped.
func (q *txQueue) halt() {
	if q.done == nil {
		return
	}
	q.stop.Store(true)
	q.wake.Wake()
	<-q.done
	q.done = nil
}

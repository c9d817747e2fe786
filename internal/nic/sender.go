package nic

import (
	"errors"
	"runtime"
	"sync/atomic"
	"time"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/wire"
)

// TxFrame is a frame on its way through a Sender.
type TxFrame struct {
	Packet wire.Packet
	// Slot is the frame's number in its Sender, from 0 to Batch-1.
	Slot int

	// since is when the wait of a held frame for its receiver began, by Patience's clock. The wait begins anew when the
	// receiver takes frames, and after a wait for a link.
	since time.Time
}

// TxQueue is the queue from which a Sender takes frames: a transmit ring of a device model, or another queue.
// The Sender's worker calls the methods; Gather, Reload and Done inside the epoch of SenderOptions.Space, if it is set.
// The methods must not wait.
type TxQueue interface {
	// Gather takes at most len(free) new frames from the ring, and describes the frames to send in free[:filled]
	// (ParseFrame, Meta, Prepare). taken also counts frames that the queue disposes of itself, such as malformed ones.
	// After an error the Sender sends the filled frames and then ends the worker.
	Gather(free []*TxFrame) (filled, taken int, err error)
	// Reload finds the payload of a held frame again before a retry (RelocatePayload). If moved is set, the address
	// space has changed, and earlier translations are void. ok is false if the frame's memory is gone: then the Sender
	// drops the frame. An error ends the worker.
	Reload(f *TxFrame, moved bool) (ok bool, err error)
	// Done returns frames to the driver. An error ends the worker.
	Done(fs []*TxFrame) error
	// Abandon disposes of a held frame when the worker ends; the newest comes first. kept reports whether the frame is
	// back in the ring; otherwise the Sender drops it.
	Abandon(f *TxFrame) (kept bool)
	// Publish makes returned frames visible to the driver, and reports whether to interrupt the driver.
	Publish() (call bool)
	// Call interrupts the driver.
	Call()
	// Pending reports whether Gather would find a frame or an error. It must be cheap.
	Pending() bool
	// Backlog returns the approximate number of frames that Gather would find. full reports whether the driver may be
	// waiting for space in the ring.
	Backlog() (frames int, full bool)
	// EnableKick makes the driver kick, or call the Sender's Wake, at the next frame. more reports whether there are
	// frames already. DisableKick undoes EnableKick.
	EnableKick() (more bool)
	DisableKick()
	// Idle lets the queue free memory that the held frames do not need.
	Idle(held []*TxFrame)
	// Stopped is called when an error has ended the worker.
	Stopped(err error)
}

// Outlet takes a Sender's frames.
type Outlet interface {
	// Send sends a batch and sets the packets' Verdicts.
	Send(batch []*wire.Packet)
	// Dropped counts a packet that was Busy and that the Sender gives up.
	Dropped(p *wire.Packet, r wire.DropReason)
}

// SenderOptions configure a Sender.
type SenderOptions struct {
	Space    *dma.Space    // address space of ring and frames; nil: they are in this process's own memory
	Batch    int           // most frames in flight, held ones included
	Patience time.Duration // most time for which frames wait for a receiver that takes none; 0: limits.Patience.Here()
	Spin     bool          // without Pollers the worker locks its thread, and may poll for a moment before it sleeps
	Drain    bool          // Stop sends the frames in the ring to receivers that take them at once
	Pollers  *Pollers      // threads that serve the Sender; nil: a goroutine of its own
}

// Sender is the worker of a transmit queue. It gathers frames, sends them, and returns finished frames to the driver.
// It holds frames that are Busy, as their receiver has no buffers or they wait for a link, to send them again later,
// in order.
//
// One goroutine, the control goroutine, calls Start, Stop and Close. The worker is a sequence of steps that
// depend on no stack or thread, so one thread can serve several Senders (Pollers).
type Sender struct {
	q     TxQueue
	out   Outlet
	o     SenderOptions
	sleep *Sleeper
	port  *Port // nil: the Outlet is not a Transmitter

	stopping atomic.Bool
	done     chan struct{} // closed when the worker has ended; nil: Start was not called since Stop

	// Used by the worker.
	cores      int
	kick       int        // the driver's eventfd; -1: the driver calls Wake
	frames     []*TxFrame // frames[:held] are held or, during a round, being sent; the others are free
	held       int
	size       batchSize
	batch      []*wire.Packet // the packets of frames, in the same order
	disposed   []*TxFrame
	late       lateFrames
	generation uint64          // generation of Space in which the held frames' segments are valid
	armed      []wire.Waitable // receivers that will wake the Sender
	patience   Patience
	clock      func() time.Time
	receivers  receivers
	kicked     bool  // the worker may read the ring: the first kick has come, or is not required
	started    bool  // the worker has called DisableKick since Start
	asked      bool  // prepare has enabled kicks; resume disables them
	looks      int   // turns of a poller before the first kick
	moved      int   // with Pollers: costOf the frames done since the poller last read moved
	broken     error // error of the poller's sleep; nil: none
	count      struct{ waits, gaveUp, slow, putBack counter }
}

// SenderStats are counters about busy receivers.
type SenderStats struct {
	Waits   uint64 // attempts to sleep for a busy receiver
	GaveUp  uint64 // frames dropped for a busy receiver, or when the worker ended
	Slow    uint64 // part of GaveUp: dropped for a slow receiver
	PutBack uint64 // frames put back into the ring when the worker ended
}

// NewSender makes a stopped Sender of a queue. Close frees it.
func NewSender(q TxQueue, out Outlet, o SenderOptions) (*Sender, error) {
	sleep, err := NewSleeper()
	if err != nil {
		return nil, err
	}
	s := &Sender{
		q: q, out: out, o: o, sleep: sleep, kick: -1, patience: Patience{Limit: o.Patience},
		frames: make([]*TxFrame, o.Batch), batch: make([]*wire.Packet, o.Batch),
		disposed: make([]*TxFrame, 0, o.Batch), armed: make([]wire.Waitable, 0, o.Batch),
	}
	s.clock = func() time.Time { return s.patience.clockAt(time.Now()) }
	if t, ok := out.(*Transmitter); ok {
		s.port, s.late.port = t.port, t.port
		s.late.q, _ = q.(LateTxQueue)
		s.q, s.out = t.port.conf.Sabotage.tx(q), t.port.conf.Sabotage.out(t)
	}
	for i := range s.frames {
		s.frames[i] = &TxFrame{Slot: i}
		s.batch[i] = &s.frames[i].Packet
	}
	return s, nil
}

// Start runs the worker of a stopped Sender. kick is the driver's eventfd, or -1 if the driver calls Wake. If kickFirst
// is set, the worker does not read the ring before the first kick.
func (s *Sender) Start(kick int, kickFirst bool) {
	s.kick = kick
	s.stopping.Store(false)
	done := make(chan struct{})
	s.done = done
	s.kicked, s.started, s.broken = !kickFirst, false, nil
	s.looks, s.moved = 0, 0
	if s.o.Pollers != nil {
		s.o.Pollers.serve(s)
		return
	}
	dma.Go(func() {
		defer close(done)
		if s.o.Spin {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			workers.Add(1)
			defer workers.Add(-1)
		}
		s.end(s.run())
	})
}

func (s *Sender) end(err error) {
	s.disarm()
	s.patience.Reset()
	s.receivers = receivers{}
	if err != nil {
		s.q.Stopped(err)
	}
}

// Stop ends the worker, perhaps after a last try to send held frames, and waits for it.
func (s *Sender) Stop() {
	if s.done == nil {
		return
	}
	s.stopping.Store(true)
	s.sleep.Wake()
	<-s.done
	s.done = nil
}

// Started reports whether the last call of Start, Stop and Close was Start.
func (s *Sender) Started() bool { return s.done != nil }

// Close stops the Sender and closes its descriptor.
func (s *Sender) Close() {
	s.Stop()
	s.sleep.Close()
}

// Wake implements wire.Waker: there may be new frames. Any goroutine may call it, also after Close.
func (s *Sender) Wake() { s.sleep.Wake() }

// Stats reads the counters.
func (s *Sender) Stats() SenderStats {
	c := &s.count
	return SenderStats{Waits: c.waits.v.Load(), GaveUp: c.gaveUp.v.Load(), Slow: c.slow.v.Load(),
		PutBack: c.putBack.v.Load()}
}

func (s *Sender) run() error {
	s.cores = runtime.GOMAXPROCS(0)
	for {
		n, ended, err := s.step()
		if ended {
			return err
		}
		if s.held > 0 || n == 0 {
			if err = s.Wait(); err != nil {
				s.Release()
				return err
			}
		}
	}
}

// step runs a round, but not before the first kick. ended reports that the worker must end.
func (s *Sender) step() (n int, ended bool, err error) {
	last, full := s.stopping.Load(), s.held == len(s.frames)
	if !s.kicked {
		return 0, last, nil
	}
	if !s.started {
		s.started = true
		s.q.DisableKick()
	}
	n, err = s.Round(last)
	s.disarm()
	if err != nil || last {
		s.Release()
		// If all slots were held, the round took no frame, and the ring may have frames to drain.
		return n, err != nil || n == 0 && !full, err
	}
	return n, false, nil
}

func (s *Sender) turn() (n int, ended bool) {
	if !s.kicked {
		s.kicked = s.looks%firstKicks == 0 && s.sleep.kicks.Consume(s.kick)
		s.looks++
	}
	n, ended, err := s.step()
	if s.broken != nil && !ended {
		s.Release()
		ended, err = true, s.broken
	}
	if ended {
		s.end(err)
	}
	return n, ended
}

// Round sends held and new frames, and publishes completed ones. It returns how many new frames it took from the queue,
// malformed ones included. If last is set, it takes none, unless SenderOptions.Drain is set.
func (s *Sender) Round(last bool) (n int, err error) {
	token := 0
	if s.o.Space != nil {
		token = s.o.Space.Enter()
	}
	if s.late.some() {
		err = s.late.show(false)
	}
	if err == nil {
		n, err = s.exchange(last && !s.o.Drain)
	}
	call := s.q.Publish()
	if s.o.Space != nil {
		s.o.Space.Leave(token)
	}
	if call {
		s.q.Call()
	}
	return n, err
}

func (s *Sender) exchange(last bool) (n int, err error) {
	var generation uint64
	if s.o.Space != nil {
		generation = s.o.Space.Generation()
	}
	if s.held > 0 {
		if err = s.reload(generation != s.generation); err != nil {
			return 0, err
		}
	}
	s.generation = generation
	old := s.held
	if !last && old < len(s.frames) {
		var filled int
		filled, n, err = s.q.Gather(s.size.limit(s.frames[old:]))
		s.held += filled
		s.size.filled(s.frames[old:s.held])
	}
	if s.held > 0 {
		s.out.Send(s.batch[:s.held])
		if e := s.settle(old); err == nil {
			err = e
		}
	}
	return n, err
}

func (s *Sender) reload(moved bool) (err error) {
	gone := s.disposed[:0]
	kept := 0
	for i, f := range s.frames[:s.held] {
		ok := true
		if err == nil { // after an error the other frames stay held
			ok, err = s.q.Reload(f, moved)
		}
		if ok || err != nil {
			s.keep(kept, i)
			kept++
			continue
		}
		s.out.Dropped(&f.Packet, wire.DropFault)
		gone = append(gone, f)
	}
	s.held = kept
	if len(gone) > 0 {
		err = errors.Join(err, s.giveBack(gone))
	}
	return err
}

// settle returns finished frames to the driver, and holds or drops Busy ones. s.frames[:old] were held before.
func (s *Sender) settle(old int) error {
	all := s.frames[:s.held]
	busy := s.receivers.count(all, old, s.clock)
	if busy == 0 && len(s.receivers.busy) == 0 {
		s.held = 0
		return s.giveBack(all)
	}
	now := s.patience.Pass(time.Now(), old > 0)
	s.receivers.hold(all, old, now)
	slow, give := (*receiver)(nil), 0
	if s.held == len(s.frames) && s.receivers.mayBeSlow(busy == s.held) {
		backlog, full := s.q.Backlog()
		if slow = s.receivers.slow(backlog, full && busy == s.held, now); slow != nil {
			give = slow.held - len(s.frames)/slowKeeps
		}
	}
	done := s.disposed[:0]
	kept := 0
	for i, f := range all {
		if v := &f.Packet.Verdict; v.Kind == wire.Busy && v.Until != 0 {
			f.since = now
			s.keep(kept, i)
			kept++
			continue
		} else if v.Kind == wire.Busy {
			r := s.receivers.find(f.Packet.Verdict.Queue, s.clock)
			if i >= old || r.lastTook.After(f.since) {
				f.since = now
			}
			reason := wire.DropNoBuffer
			switch {
			case r == slow && give > 0:
				give--
				reason = wire.DropSlowReceiver
				s.count.slow.add(1)
			case s.patience.ShouldWait(r.queue, f.since, now):
				s.keep(kept, i)
				kept++
				continue
			}
			r.held--
			s.count.gaveUp.add(1)
			s.out.Dropped(&f.Packet, reason)
		}
		done = append(done, f)
	}
	s.held = kept
	if len(done) == 0 {
		return nil
	}
	return s.giveBack(done)
}

func (s *Sender) giveBack(fs []*TxFrame) error {
	if s.o.Pollers != nil {
		s.moved += costOf(fs)
	}
	if s.late.wanted() {
		return s.late.put(fs)
	}
	return s.q.Done(fs)
}

func (s *Sender) keep(k, i int) {
	s.frames[k], s.frames[i] = s.frames[i], s.frames[k]
	s.batch[k], s.batch[i] = s.batch[i], s.batch[k]
}

// Release puts held frames back into the ring or drops them, and completes delayed frames.
func (s *Sender) Release() {
	if s.late.some() {
		s.late.end()
	}
	for ; s.held > 0; s.held-- {
		f := s.frames[s.held-1]
		if s.q.Abandon(f) {
			s.count.putBack.add(1)
			continue
		}
		s.count.gaveUp.add(1)
		s.out.Dropped(&f.Packet, wire.DropNoBuffer)
	}
	s.trim()
	if s.q.Publish() {
		s.q.Call()
	}
}

// trim frees long segment lists of frames that are not held.
func (s *Sender) trim() {
	for _, f := range s.frames[s.held:] {
		f.Packet.Payload = dma.Reuse(f.Packet.Payload[:0])
	}
	s.q.Idle(s.frames[:s.held])
}

// Frames returns the frames of a stopped Sender, for tests of device models.
func (s *Sender) Frames() []*TxFrame { return s.frames }

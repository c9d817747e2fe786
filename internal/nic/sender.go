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
	// Slot is which of the Sender's frames this is, from 0 to Batch-1. At this index the queue
	// keeps what it knows of the frame, from Gather to Done or Abandon.
	Slot int

	since time.Time // only of frames that are held: since then its receiver has taken none of them
}

// TxQueue is the ring of a transmit queue, as a device model gives it to its Sender. The Sender's
// worker calls all methods; Gather, Reload, Done and Publish inside the epoch of the queue's
// address space. None of them waits.
type TxQueue interface {
	// Gather takes new frames from the ring, at most as many as free has, and describes those that
	// are to be sent in free[:filled], in their order (ParseFrame, Meta, Prepare). taken counts also
	// those that the queue disposed of by itself, as they are malformed. An error stops the queue,
	// when what was filled has been sent; what comes behind it stays the driver's.
	Gather(free []*TxFrame) (filled, taken int, err error)
	// Reload finds the payload of a held frame again, before each retry (RelocatePayload): Send may have put
	// other segments in its place. moved says that the address space has changed since Gather or
	// the last Reload, so that translations are void. ok is false if the frame's memory has gone:
	// it is dropped. An error stops the queue.
	Reload(f *TxFrame, moved bool) (ok bool, err error)
	// Done gives frames back to the driver, in this order; what became of each says its Verdict. An
	// error stops the queue.
	Done(fs []*TxFrame) error
	// Abandon disposes of a held frame, as the queue stops: the newest is the first. It returns
	// true if the ring has the frame again, for the next start; else it is dropped.
	Abandon(f *TxFrame) (kept bool)
	// Publish shows the driver what Done gave back, and says whether it wants a call.
	Publish() (call bool)
	// Call calls the driver.
	Call()
	// Pending says whether Gather would find something; an error is something. It is cheap: it is
	// polled.
	Pending() bool
	// Backlog is about how many frames Gather would find. full says that with those under way they take about all
	// of the ring, so that the driver may be waiting to send more. It is asked only where frames fill the batch.
	Backlog() (frames int, full bool)
	// EnableKick asks the driver to kick, or to Wake the Sender, at the next frame. more says that
	// there are frames already, for which no kick may come. DisableKick takes it back.
	EnableKick() (more bool)
	DisableKick()
	// Idle is called before the worker sleeps and when it ends: it may be long until the next
	// frame, so what the queue keeps for others than the held frames may go.
	Idle(held []*TxFrame)
	// Stopped is the worker's last call, if an error of the queue has ended it.
	Stopped(err error)
}

// Outlet takes a Sender's frames: a Transmitter, of all device models.
type Outlet interface {
	// Send sends a batch and sets every Verdict.
	Send(batch []*wire.Packet)
	// Dropped tells of a packet that Send did not see to its end: it was Busy, and is given up.
	Dropped(p *wire.Packet, r wire.DropReason)
}

// SenderOptions say how a Sender works.
type SenderOptions struct {
	Space    *dma.Space    // where the ring and the frames lie; nil: in memory of ours, which no map changes
	Batch    int           // most frames under way, those that wait for a busy receiver included
	Patience time.Duration // how long a frame waits for a receiver without buffers; 0: limits.Patience
	Spin     bool          // it has a thread of its own, and waits busily for a moment before it sleeps
	Drain    bool          // Stop sends what the ring has, to receivers that take it at once
	Pollers  *Pollers      // whose threads serve it; nil: a goroutine of its own does
}

// Sender is the worker of a transmit queue. It gathers frames, sends them, gives back what is
// disposed of, and holds what meets a busy receiver: that is retried, before all new frames and in
// its order, when the receiver has buffers, until patience ends. It sleeps until one of these
// receivers, the driver or Stop wakes it.
//
// One goroutine, the control goroutine, calls Start, Stop and Close. The worker's steps do not
// depend on one another's stack or thread: Round does no waiting, and what the worker waits for are
// a Sleeper, its kick and a deadline. So one thread can come to serve several Senders.
type Sender struct {
	q     TxQueue
	out   Outlet
	o     SenderOptions
	sleep *Sleeper
	port  *Port // whose transmit queue it is; nil: of no NIC, or RDMA's

	stopping atomic.Bool   // set by Stop, which then wakes
	done     chan struct{} // closed by the worker; nil: no worker. Control goroutine

	// The worker's.
	cores      int
	kick       int        // the driver's eventfd; -1: it calls Wake
	frames     []*TxFrame // frames[:held] are under way, oldest first; the others are free
	held       int
	size       batchSize
	batch      []*wire.Packet // frames' packets, always in the same order
	disposed   []*TxFrame     // memory of settle
	late       lateFrames
	generation uint64          // of the space for which the held frames' segments are good
	armed      []wire.Waitable // receivers that held frames wait for, from prepare to the end of the next step
	patience   Patience
	clock      func() time.Time // by which frames are held
	receivers  receivers
	kicked     bool  // the ring may be touched
	started    bool  // a poller has begun with it
	asked      bool  // the driver, for kicks
	looks      int   // of a poller, for the first kick
	moved      int   // costOf the frames done since a poller has looked
	broken     error // of the poller
	count      struct{ waits, gaveUp, slow, putBack counter }
}

// SenderStats count what became of frames that met a busy receiver.
type SenderStats struct {
	Waits   uint64 // sleeps for a busy receiver
	GaveUp  uint64 // frames dropped after waiting, or as the queue stopped
	Slow    uint64 // of these: for a slow receiver, so that frames to others are seen
	PutBack uint64 // frames that waited when the queue was stopped, and were left to the driver
}

// NewSender makes a stopped Sender of a queue, to be closed by Close.
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
	s.clock = func() time.Time { return s.patience.at(time.Now()) }
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

// Start runs the worker of a stopped queue. kick is the driver's eventfd, or -1 if the queue calls
// Wake. If kickFirst, the ring is not touched before there is a signal in it.
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

// end is the worker's last step; err has ended it, nil: Stop.
func (s *Sender) end(err error) {
	s.disarm()
	s.patience.Reset()
	s.receivers = receivers{}
	if err != nil {
		s.q.Stopped(err)
	}
}

// Stop ends the worker after a last round, in which held frames are sent once more: when it returns
// nothing touches the ring.
func (s *Sender) Stop() {
	if s.done == nil {
		return
	}
	s.stopping.Store(true)
	s.sleep.Wake()
	<-s.done
	s.done = nil
}

// Started says whether there was no Stop since Start. The worker may have ended for an error.
func (s *Sender) Started() bool { return s.done != nil }

// Close stops the Sender and frees its descriptor.
func (s *Sender) Close() {
	s.Stop()
	s.sleep.Close()
}

// Wake implements wire.Waker: there are new frames. Any goroutine may call it, also after Close.
func (s *Sender) Wake() { s.sleep.Wake() }

// Stats reads the counters.
func (s *Sender) Stats() SenderStats {
	c := &s.count
	return SenderStats{Waits: c.waits.v.Load(), GaveUp: c.gaveUp.v.Load(), Slow: c.slow.v.Load(),
		PutBack: c.putBack.v.Load()}
}

// run moves frames until the queue is told to stop, or until an error of it.
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

// step is a round, or the last one, behind which nothing touches the ring. Before the first kick, if one is waited for,
// it is neither.
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
		// Where held frames filled the batch, there may be more.
		return n, err != nil || n == 0 && !full, err
	}
	return n, false, nil
}

// turn is a poller's: a step, and the end if it was the last one; the poller closes done then.
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

// Round sends what is held and what is new, and publishes what came of it. It returns how many new
// frames there were, which are none if it is the last one.
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

// exchange does so inside the epoch. After an error, what was good before it has been sent.
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
		filled, n, err = s.q.Gather(s.size.of(s.frames[old:]))
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

// reload finds the memory of held frames again, as the map may have changed while we slept. What
// has gone with it is dropped.
func (s *Sender) reload(moved bool) (err error) {
	gone := s.disposed[:0]
	kept := 0
	for i, f := range s.frames[:s.held] {
		ok := true
		if err == nil { // else the rest stays held, for Release
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

// settle gives back the frames that are disposed of, and keeps those that met a busy receiver; the
// first old ones have before.
func (s *Sender) settle(old int) error {
	all := s.frames[:s.held]
	busy := s.receivers.count(all, old, s.clock) // those that wait for links included
	if busy == 0 && len(s.receivers.busy) == 0 {
		s.held = 0
		return s.giveBack(all)
	}
	now := s.patience.Pass(time.Now(), old > 0)
	s.receivers.hold(all, old, now)
	slow, give := (*receiver)(nil), 0
	if s.held == len(s.frames) && s.receivers.judges(busy == s.held) {
		backlog, full := s.q.Backlog()
		if slow = s.receivers.slow(backlog, full && busy == s.held, now); slow != nil {
			give = slow.held - len(s.frames)/slowKeeps
		}
	}
	done := s.disposed[:0]
	kept := 0
	for i, f := range all {
		if v := &f.Packet.Verdict; v.Kind == wire.Busy && v.Until != 0 {
			f.since = now // nobody has been waited for
			s.keep(kept, i)
			kept++
			continue
		} else if v.Kind == wire.Busy {
			r := s.receivers.of(f.Packet.Verdict.Queue, s.clock)
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

// giveBack gives frames back to the driver, now or later.
func (s *Sender) giveBack(fs []*TxFrame) error {
	if s.o.Pollers != nil {
		s.moved += costOf(fs)
	}
	if s.late.wanted() {
		return s.late.put(fs)
	}
	return s.q.Done(fs)
}

// keep moves frame i to place k.
func (s *Sender) keep(k, i int) {
	s.frames[k], s.frames[i] = s.frames[i], s.frames[k]
	s.batch[k], s.batch[i] = s.batch[i], s.batch[k]
}

// Release gives back or drops all held frames, as the queue stops, and gives back those that are done. The worker calls
// it by itself.
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

// trim frees the long segment lists of frames that are done.
func (s *Sender) trim() {
	for _, f := range s.frames[s.held:] {
		f.Packet.Payload = dma.Reuse(f.Packet.Payload[:0])
	}
	s.q.Idle(s.frames[:s.held])
}

// Frames gives the frames of a Sender that does not run, in any order: what it keeps is bounded,
// and tests of device models hold that.
func (s *Sender) Frames() []*TxFrame { return s.frames }

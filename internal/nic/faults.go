package nic

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"vnic.dev/vnic/internal/lab/shape"
	"vnic.dev/vnic/internal/wire"
)

// Greatest durations for DelayCompletions and Exhaust.
const (
	MaxCompletionDelay = time.Second
	MaxExhaustion      = 10 * time.Second
)

// Bits of Port.trouble.
const (
	noCarrier       = 1 << iota // the link is down
	noBuffers                   // Exhaust is in effect
	lateCompletions             // DelayCompletions has set a delay
)

type faults struct {
	losing   atomic.Int32 // interrupts still to be dropped
	delay    atomic.Int64 // of transmit completions, in nanoseconds
	counters struct{ lost, late, refused atomic.Uint64 }

	waiting atomic.Int32
	work    sync.WaitGroup
	mu      sync.Mutex
	waiters []wire.Waker // under mu: endExhaustion wakes them
	timer   *time.Timer  // under mu: ends the exhaustion; nil: it does not run
	closed  bool
}

// FaultCounters count the effects of LoseInterrupt, DelayCompletions and Exhaust.
type FaultCounters struct {
	LostInterrupts  uint64 `json:"lost_interrupts"`
	LateCompletions uint64 `json:"late_completions"` // frames whose completion was delayed
	Refused         uint64 `json:"refused"`          // packets that Deliver made Busy for Exhaust; each retry counts
}

// Faults returns the port's FaultCounters.
func (p *Port) Faults() FaultCounters {
	c := &p.faults.counters
	return FaultCounters{c.lost.Load(), c.late.Load(), c.refused.Load()}
}

// LoseInterrupt makes the device model drop the next interrupt that a queue, whichever it is, would send to the driver.
// After n calls it drops n interrupts.
func (p *Port) LoseInterrupt() { p.faults.losing.Add(1) }

// InterruptLost reports whether the device model must drop the interrupt that it is about to send, and if so, counts it
// as lost. After a drop the device model must treat the next interrupt of the queue as if the driver had asked for it.
func (p *Port) InterruptLost() bool {
	for n := p.faults.losing.Load(); n > 0; n = p.faults.losing.Load() {
		if p.faults.losing.CompareAndSwap(n, n-1) {
			p.faults.counters.lost.Add(1)
			return true
		}
	}
	return false
}

// DelayCompletions delays transmit completions of queues that implement LateTxQueue by d, at most MaxCompletionDelay.
// A completion comes earlier if more than maxLate frames of its queue wait, or if the queue stops. d = 0, the
// default, ends the delay: frames that wait are completed in their Sender's next round.
func (p *Port) DelayCompletions(d time.Duration) {
	d = min(max(d, 0), MaxCompletionDelay)
	p.faults.delay.Store(int64(d))
	p.set(lateCompletions, d > 0)
}

// CompletionDelay returns the present delay of transmit completions; 0: none.
func (p *Port) CompletionDelay() time.Duration { return time.Duration(p.faults.delay.Load()) }

// Exhaust makes the port take no receive buffers for d, at most MaxExhaustion: Deliver makes packets for receive queues
// Busy meanwhile, and answers to commands wait in the backlog. A new call replaces the previous one; d = 0 ends the
// exhaustion. After Close, Exhaust does nothing.
func (p *Port) Exhaust(d time.Duration) {
	f := &p.faults
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		return
	}
	f.stopTimer()
	if d <= 0 {
		p.endExhaustion()
		return
	}
	p.set(noBuffers, true)
	f.work.Add(1)
	var timer *time.Timer
	timer = time.AfterFunc(min(d, MaxExhaustion), func() {
		defer f.work.Done()
		f.mu.Lock()
		if f.timer != timer {
			f.mu.Unlock()
			return
		}
		f.timer = nil
		p.endExhaustion()
	})
	f.timer = timer
	f.mu.Unlock()
}

func (f *faults) stopTimer() {
	if f.timer != nil && f.timer.Stop() {
		f.work.Done()
	}
	f.timer = nil
}

// endExhaustion ends an exhaustion, and wakes its waiters. The caller holds mu; endExhaustion releases it.
func (p *Port) endExhaustion() {
	f := &p.faults
	p.set(noBuffers, false)
	woken := f.waiters
	f.waiters = nil
	f.waiting.Store(0)
	f.mu.Unlock()
	for _, w := range woken {
		w.Wake()
	}
}

func (p *Port) endFaults() {
	p.Exhaust(0)
	f := &p.faults
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	f.work.Wait()
}

func (p *Port) set(what uint32, on bool) {
	if on {
		p.trouble.Or(what)
	} else {
		p.trouble.And(^what)
	}
}

func (p *Port) exhausted() bool { return p.trouble.Load()&noBuffers != 0 }

// exhaustion is what the senders of packets that refuse made Busy wait for: RxBase does not wake them when the
// exhaustion ends.
type exhaustion struct{ port *Port }

// Arm implements wire.Waitable.
func (e *exhaustion) Arm(w wire.Waker) bool {
	f := &e.port.faults
	f.mu.Lock()
	defer f.mu.Unlock()
	if !e.port.exhausted() {
		return false
	}
	f.waiters = append(f.waiters, w)
	f.waiting.Add(1)
	return true
}

// Disarm implements wire.Waitable.
func (e *exhaustion) Disarm(w wire.Waker) {
	f := &e.port.faults
	if f.waiting.Load() == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if i := slices.Index(f.waiters, w); i >= 0 {
		f.waiters = slices.Delete(f.waiters, i, i+1)
		f.waiting.Add(-1)
	}
}

// refuse makes the packets at the start of batch that go to queue r.q Busy, and returns how many they were. Like
// fill, it sets r to the route of the packet behind them, if there is one.
func (rq *rxQueue) refuse(d *delivery, batch []*wire.Packet, r *route) (n int) {
	for q := r.q; r.q == q; {
		batch[n].Verdict = wire.Verdict{Kind: wire.Busy, Queue: &rq.exhaustion}
		if n++; n == len(batch) {
			break
		}
		d.port.follow(d.s, r, batch[n-1], batch[n])
	}
	d.port.faults.counters.refused.Add(uint64(n))
	return n
}

// LateTxQueue is implemented by a TxQueue that can return frames to the driver after the Sender has reused their
// TxFrames (Port.DelayCompletions).
type LateTxQueue interface {
	// Token identifies a done frame for DoneLate.
	Token(f *TxFrame) uint32
	// DoneLate is Done for the frame with this token.
	DoneLate(token uint32) error
}

// maxLate bounds the delayed frames of a Sender; beyond it the oldest ones are completed early.
const maxLate = 1 << 15

// lateFrames are a Sender's done frames whose completion is delayed: list[next:], oldest first.
type lateFrames struct {
	q    LateTxQueue // nil: no frame is delayed
	port *Port
	list []lateFrame
	next int // index of the first frame that is not completed
}

type lateFrame struct {
	due   int64 // when to complete it, by shape.Now
	token uint32
}

func (l *lateFrames) end() {
	_ = l.show(true)
	l.list, l.next = l.list[:0], 0
}

func (l *lateFrames) some() bool { return l.next < len(l.list) }

func (l *lateFrames) wanted() bool { return l.q != nil && l.port.trouble.Load()&lateCompletions != 0 }

func (l *lateFrames) put(fs []*TxFrame) error {
	due := shape.Now() + l.port.faults.delay.Load()
	l.port.faults.counters.late.Add(uint64(len(fs)))
	if l.next > 0 && len(l.list)+len(fs) > cap(l.list) {
		l.list = slices.Delete(l.list, 0, l.next)
		l.next = 0
	}
	for _, f := range fs {
		l.list = append(l.list, lateFrame{due, l.q.Token(f)})
	}
	for len(l.list)-l.next > maxLate {
		if err := l.give(); err != nil {
			return err
		}
	}
	return nil
}

func (l *lateFrames) give() error {
	token := l.list[l.next].token
	if l.next++; l.next == len(l.list) {
		l.list, l.next = l.list[:0], 0
	}
	return l.q.DoneLate(token)
}

// show completes the oldest frames as far as they are due. If the parameter all is set, or the delay has ended, it
// completes every frame.
func (l *lateFrames) show(all bool) error {
	all = all || !l.wanted()
	for now := shape.Now(); l.some() && (all || l.list[l.next].due <= now); {
		if err := l.give(); err != nil {
			return err
		}
	}
	return nil
}

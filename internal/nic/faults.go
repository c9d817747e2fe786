package nic

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"vnic.dev/vnic/internal/lab/shape"
	"vnic.dev/vnic/internal/wire"
)

// Bounds of what is asked of a port that misbehaves: no driver is without its ring for longer.
const (
	MaxCompletionDelay = time.Second
	MaxExhaustion      = 10 * time.Second
)

// What is the matter with a port, in Port.trouble.
const (
	noCarrier       = 1 << iota // the link is down
	noBuffers                   // receive buffers are not taken: Exhaust
	lateCompletions             // DelayCompletions
)

// faults are what a NIC does wrong because somebody wants to see what its guest makes of it.
type faults struct {
	losing   atomic.Int32 // interrupts that are still to be lost
	delay    atomic.Int64 // of transmit completions, in nanoseconds
	counters struct{ lost, late, refused atomic.Uint64 }

	waiting atomic.Int32 // how many waiters there are
	work    sync.WaitGroup
	mu      sync.Mutex
	waiters []wire.Waker // under mu: for the end of noBuffers
	timer   *time.Timer  // under mu: of that end; nil: none
	closed  bool         // under mu
}

// FaultCounters count what a port did wrong on demand, with their keys in the JSON of vnic stat.
type FaultCounters struct {
	LostInterrupts  uint64 `json:"lost_interrupts"`
	LateCompletions uint64 `json:"late_completions"` // frames
	Refused         uint64 `json:"refused"`          // frames without a buffer during Exhaust, as often as they came
}

// Faults reads the counters.
func (p *Port) Faults() FaultCounters {
	c := &p.faults.counters
	return FaultCounters{c.lost.Load(), c.late.Load(), c.refused.Load()}
}

// LoseInterrupt has the next call of the driver not be made, on whichever queue it is. What was to be told is told
// with the next that comes.
func (p *Port) LoseInterrupt() { p.faults.losing.Add(1) }

// InterruptLost says whether a call that the driver wants is lost. The device model asks before it makes one, and sees
// to it that the next is made even if the driver did not ask for it anew.
func (p *Port) InterruptLost() bool {
	for n := p.faults.losing.Load(); n > 0; n = p.faults.losing.Load() {
		if p.faults.losing.CompareAndSwap(n, n-1) {
			p.faults.counters.lost.Add(1)
			return true
		}
	}
	return false
}

// DelayCompletions has transmit completions shown to the driver so much later, MaxCompletionDelay at most. 0: at once,
// as at first; those that wait are shown when their queue has something to do, or at their time.
func (p *Port) DelayCompletions(d time.Duration) {
	d = min(max(d, 0), MaxCompletionDelay)
	p.faults.delay.Store(int64(d))
	p.set(lateCompletions, d > 0)
}

// CompletionDelay is what DelayCompletions set.
func (p *Port) CompletionDelay() time.Duration { return time.Duration(p.faults.delay.Load()) }

// Exhaust has the port take no receive buffers for so long, MaxExhaustion at most, as if no driver had posted any: what
// comes is Busy, and waits for the end. It begins anew what is under way. 0 ends that.
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
		f.mu.Lock() // behind which timer is set
		if f.timer != timer {
			f.mu.Unlock() // another one ends it
			return
		}
		f.timer = nil
		p.endExhaustion()
	})
	f.timer = timer
	f.mu.Unlock()
}

// stopTimer has the timer end nothing. The caller holds mu.
func (f *faults) stopTimer() {
	if f.timer != nil && f.timer.Stop() {
		f.work.Done()
	}
	f.timer = nil
}

// endExhaustion has buffers taken again, and wakes those that wait for them, all at once: only the user ends an
// exhaustion, and who finds no buffers then waits for its port's turn. The caller holds mu, which is free when it
// returns.
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

// endFaults ends what is under way, for good.
func (p *Port) endFaults() {
	p.Exhaust(0)
	f := &p.faults
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	f.work.Wait()
}

// set says that something is, or is no more, the matter.
func (p *Port) set(what uint32, on bool) {
	if on {
		p.trouble.Or(what)
	} else {
		p.trouble.And(^what)
	}
}

func (p *Port) exhausted() bool { return p.trouble.Load()&noBuffers != 0 }

// exhaustion is what waits for the end of noBuffers wait for, on a receive queue. It is not the queue itself: that
// would wake them when its driver posts, and let them wait on for more buffers than it had when it last lacked some.
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

// refuse has the run of packets at the start of batch that go to r.q wait for the end of noBuffers, as fill puts them.
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

// LateTxQueue is a TxQueue that can give frames back later than they are done, when their places are other frames'
// (Port.DelayCompletions).
type LateTxQueue interface {
	// Token is what DoneLate takes for a frame that is done.
	Token(f *TxFrame) uint32
	// DoneLate is Done for such a frame.
	DoneLate(token uint32) error
}

// maxLate is how many frames are done late at a time, which is more than an honest driver has on its way. Beyond it the
// oldest are shown early.
const maxLate = 1 << 15

// lateFrames are frames that are done, and are to be given back in their order when each is due.
type lateFrames struct {
	q    LateTxQueue // nil: it cannot
	port *Port
	list []lateFrame
	next int // in list: those before have been given back
}

type lateFrame struct {
	due   int64 // of shape.Now
	token uint32
}

// end gives all back that can be, as the queue stops.
func (l *lateFrames) end() {
	_ = l.show(true) // nobody is there any more whom an error would stop
	l.list, l.next = l.list[:0], 0
}

func (l *lateFrames) some() bool { return l.next < len(l.list) }

// wanted says whether completions are to be late now.
func (l *lateFrames) wanted() bool { return l.q != nil && l.port.trouble.Load()&lateCompletions != 0 }

// put takes frames that are done.
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

// give gives the oldest back.
func (l *lateFrames) give() error {
	token := l.list[l.next].token
	if l.next++; l.next == len(l.list) {
		l.list, l.next = l.list[:0], 0
	}
	return l.q.DoneLate(token)
}

// show gives back those that are due, or all of them.
func (l *lateFrames) show(all bool) error {
	all = all || !l.wanted()
	for now := shape.Now(); l.some() && (all || l.list[l.next].due <= now); {
		if err := l.give(); err != nil {
			return err
		}
	}
	return nil
}

package nic

import (
	"slices"
	"sync"
	"sync/atomic"

	"vnic.dev/vnic/internal/wire"
)

// RxBase is the part of a receive queue that is the same in all device models: its lock, the list
// of senders that wait for buffers, and the error that stopped it. A device model embeds it in its
// RxQueue, of which it implements Lock, Unlock, Arm and Disarm, and calls Init before the queue is
// used.
//
// Ports that wait take turns, whatever number of queues each waits with. For each turnBuffers that there
// are one waiter (PortWaker) is woken, of the port that has had fewest frames, and one of a port at a
// time: the one that has waited longest. A turn ends with the waiter's Disarm, which follows the frames
// that it sends; if there are buffers left, others have theirs then. A waiter of no port is woken
// whenever buffers are posted.
//
// A port does not need a turn to send: a sender that is awake has none. But while another port has a turn,
// a port that is more than mostLead frames ahead of it gets no turn, and none of its frames is taken
// (Admit). Its senders wait in the list meanwhile, also beside free buffers.
//
// Parts are equal in frames, not in bytes: ports compete for buffers, and the driver's work for a frame
// hardly depends on its length. A port that sends longer frames moves more bytes in its part.
//
// Unlock does what must not be done under the lock: it wakes senders and reports an error.
type RxBase struct {
	model   RxModel
	waiting atomic.Int32 // how many senders wait, one that Arm is busy with included

	mu     sync.Mutex
	ports  []portTurns  // under mu, as all that follows
	served int          // the greatest portTurns.took that there was
	others []wire.Waker // those of no port
	posts  uint64       // calls of WakeNext
	woken  []wire.Waker // to be woken by Unlock
	err    error        // why the queue stopped
	failed bool         // Unlock is to report err
}

const (
	turnBuffers = 32  // buffers for which a port is given a turn: a Sender's batch
	mostLead    = 128 // frames that a port may have more than one that has a turn
	mostLag     = 256 // frames that a port may have more than others, once it waits again, for those that it has missed
	keepTurns   = 64  // calls of WakeNext for which a port is remembered of which nobody waits
)

// portTurns are the senders of a port that wait.
type portTurns struct {
	serial  uint32     // of its link
	waiters []waiter   // the first is next
	turn    wire.Waker // woken, and not disarmed since; nil: none
	before  int        // took when the turn began
	vain    wire.Waker // whose turn was the last one, if nothing was taken; it keeps its place
	took    int        // frames that the queue took of the port, those counted in that it did not wait for
	posts   uint64     // RxBase.posts when one of it began to wait last
}

type waiter struct {
	wire.Waker
	posts uint64 // RxBase.posts when it last looked for buffers
}

// PortWaker is a wire.Waker of a port with several queues. After it is woken it is to be disarmed, as
// soon as it has sent what it had, or has nothing to send any more: until then a receive queue wakes no
// other one of its port.
type PortWaker interface {
	wire.Waker
	// PortSerial is the wire.Link.Serial of the port, and does not change while the waker waits or has
	// its turn; 0: it is of none.
	PortSerial() uint32
}

// RxModel is what a device model says to its queue's RxBase.
type RxModel interface {
	// AwaitBuffers asks the driver to say when it posts buffers; WakeNext is called then. It returns
	// false if there are more buffers already than the last frame found, or if the queue does not
	// run. It is called under the lock.
	AwaitBuffers() bool
	// Buffers is about how many buffers there are, be they too few for the last frame. It is called
	// under the lock.
	Buffers() int
	// Stopped is called once after each Fail, without the lock, on the goroutine that held it. It
	// does not wait.
	Stopped(err error)
}

// Init sets the device model's queue.
func (b *RxBase) Init(m RxModel) { b.model = m }

// Lock implements RxQueue.
func (b *RxBase) Lock() { b.mu.Lock() }

// Unlock implements RxQueue.
func (b *RxBase) Unlock() {
	woken, failed, err := b.woken, b.failed, b.err
	b.woken, b.failed = nil, false
	b.mu.Unlock()
	for _, w := range woken {
		w.Wake()
	}
	if failed {
		b.model.Stopped(err)
	}
}

// Arm implements wire.Waitable. Though there are buffers, a sender waits whose port has others that wait, which is
// behind them, or whose port Admit refuses.
func (b *RxBase) Arm(w wire.Waker) bool {
	b.Lock()
	defer b.Unlock()
	b.waiting.Add(1) // before AwaitBuffers looks: a driver that posts and then asks Waiting does it the other way round
	b.disarm(w)
	more := b.err != nil || !b.model.AwaitBuffers()
	serial, looked := serialOf(w), b.posts
	if more {
		looked-- // it has not seen the last ones
	}
	switch p := b.find(serial); {
	case more && (p == nil || p.idle() && !b.leads(p)):
		b.waiting.Add(-1)
		return false
	case serial == 0:
		b.others = append(b.others, w)
	default:
		if p == nil {
			p = b.add(serial)
		}
		if p.idle() {
			p.took = max(p.took, b.served-mostLag)
		}
		at := len(p.waiters)
		if p.vain == w {
			at, p.vain = 0, nil
		}
		p.waiters, p.posts = slices.Insert(p.waiters, at, waiter{w, looked}), b.posts
	}
	if more {
		b.giveTurns(true)
	}
	return true
}

// Disarm implements wire.Waitable.
func (b *RxBase) Disarm(w wire.Waker) {
	b.Lock()
	defer b.Unlock()
	b.disarm(w)
}

// disarm takes a waiter off the list, or ends its turn.
func (b *RxBase) disarm(w wire.Waker) {
	serial := serialOf(w)
	if serial == 0 {
		if i := slices.Index(b.others, w); i >= 0 {
			b.others = slices.Delete(b.others, i, i+1)
			b.waiting.Add(-1)
		}
		return
	}
	p := b.find(serial)
	if p == nil {
		return
	}
	if p.turn == w {
		if p.turn, p.vain = nil, nil; p.took == p.before {
			p.vain = w
		}
		b.goOn()
		return
	}
	for j := range p.waiters {
		if p.waiters[j].Waker == w {
			p.waiters = slices.Delete(p.waiters, j, j+1)
			b.waiting.Add(-1)
			return
		}
	}
}

// goOn lets others have a turn after one has ended, if there are buffers left. If there are more than the last frame
// found, that is anybody; else those who have not looked since they were posted, as they may need fewer.
func (b *RxBase) goOn() {
	for i := range b.ports {
		if len(b.ports[i].waiters) > 0 {
			if more := !b.model.AwaitBuffers(); more || b.model.Buffers() > 0 {
				b.giveTurns(more)
			}
			return
		}
	}
}

// giveTurns has waiters woken for the buffers that there are, of ports that have no turn: all of these, or those that
// have not looked since the last WakeNext.
func (b *RxBase) giveTurns(all bool) {
	turns := 0
	for i := range b.ports {
		if b.ports[i].turn != nil {
			turns++
		}
	}
	for most := max(1, (b.model.Buffers()+turnBuffers-1)/turnBuffers); turns < most; turns++ {
		p, i := b.next(all)
		if p == nil {
			return
		}
		p.turn, p.before = p.waiters[i].Waker, p.took
		p.waiters = slices.Delete(p.waiters, i, i+1)
		b.waiting.Add(-1)
		b.woken = append(b.woken, p.turn)
	}
}

// next is the port that giveTurns gives a turn, and its waiter; nil: none.
func (b *RxBase) next(all bool) (least *portTurns, at int) {
	for i := range b.ports {
		p := &b.ports[i]
		if p.turn != nil || least != nil && p.took >= least.took {
			continue
		}
		for j := range p.waiters {
			if all || p.waiters[j].posts != b.posts {
				least, at = p, j
				break
			}
		}
	}
	if least != nil && b.leads(least) { // and so do all others that wait
		return nil, 0
	}
	return least, at
}

// leads reports whether a port is too far ahead of another one that has a turn.
func (b *RxBase) leads(p *portTurns) bool {
	for i := range b.ports {
		if o := &b.ports[i]; o.turn != nil && o.behind(p) {
			return true
		}
	}
	return false
}

// behind reports whether another port has had so many frames more that it lets p go first.
func (p *portTurns) behind(o *portTurns) bool { return o != p && o.took-p.took > mostLead }

// Admit reports whether frames of a port, by its PortSerial, may be put now. If not they are Busy, and wait for this
// queue. It is called under the lock.
func (b *RxBase) Admit(serial uint32) bool {
	if len(b.ports) == 0 {
		return true
	}
	waits, behind, p := false, false, b.find(serial)
	for i := range b.ports {
		if o := &b.ports[i]; o != p && !o.idle() {
			waits = true
			behind = behind || p != nil && o.behind(p)
		}
	}
	switch {
	case waits && p == nil: // its frames count from now on
		b.add(serial).posts = b.posts
		return true
	case !behind || p.turn != nil:
		return true
	case !b.model.AwaitBuffers(): // who waits may not have been woken yet: the driver's kick is on its way
		b.giveTurns(true)
	}
	p = b.find(serial) // which AwaitBuffers may have moved
	return p == nil || !b.leads(p)
}

// Delivered is told what became of frames of one port, under the lock.
func (b *RxBase) Delivered(batch []*wire.Packet) {
	if len(b.ports) == 0 {
		return
	}
	if p := b.find(batch[0].From); p != nil {
		for _, pkt := range batch {
			if pkt.Verdict.Kind == wire.Taken {
				p.took++
			}
		}
		b.served = max(b.served, p.took)
	}
}

// serialOf is that of a waiter's port; 0: it is of none.
func serialOf(w wire.Waker) uint32 {
	if p, ok := w.(PortWaker); ok {
		return p.PortSerial()
	}
	return 0
}

// find finds a port; nil: it has no waiters, and no turn.
func (b *RxBase) find(serial uint32) *portTurns {
	for i := range b.ports {
		if b.ports[i].serial == serial {
			return &b.ports[i]
		}
	}
	return nil
}

// add adds a port. It takes the memory of one that has been forgotten.
func (b *RxBase) add(serial uint32) *portTurns {
	n := len(b.ports)
	if n < cap(b.ports) {
		b.ports = b.ports[:n+1]
	} else {
		b.ports = append(b.ports, portTurns{})
	}
	p := &b.ports[n]
	p.serial, p.took = serial, b.served
	return p
}

// idle reports whether nobody of a port waits, or has a turn.
func (p *portTurns) idle() bool { return p.turn == nil && len(p.waiters) == 0 }

// Waiting says whether senders wait. It needs no lock: after buffers were made visible, it misses
// no sender.
func (b *RxBase) Waiting() bool { return b.waiting.Load() > 0 }

// WakeNext is called when there are new buffers: it gives ports that wait their turns, and has those woken who wait for
// no port. Unlock wakes them.
func (b *RxBase) WakeNext() {
	b.posts++
	b.wakeOthers()
	kept := 0
	for i := range b.ports {
		if p := &b.ports[i]; !p.idle() || b.posts-p.posts <= keepTurns {
			b.ports[kept], b.ports[i] = b.ports[i], b.ports[kept]
			kept++
		}
	}
	b.forget(kept)
	b.giveTurns(true)
}

// forget forgets the ports from place n on, but for their memory.
func (b *RxBase) forget(n int) {
	for i := n; i < len(b.ports); i++ {
		p := &b.ports[i]
		clear(p.waiters)
		*p = portTurns{waiters: p.waiters[:0]}
	}
	b.ports = b.ports[:n]
}

// WakeAll has all senders that wait woken by Unlock, and ends all turns: what they waited for does not come.
func (b *RxBase) WakeAll() {
	b.wakeOthers()
	for i := range b.ports {
		for _, w := range b.ports[i].waiters {
			b.woken = append(b.woken, w.Waker)
		}
		b.waiting.Add(-int32(len(b.ports[i].waiters)))
	}
	b.forget(0)
}

func (b *RxBase) wakeOthers() {
	b.waiting.Add(-int32(len(b.others)))
	b.woken = append(b.woken, b.others...)
	clear(b.others)
	b.others = b.others[:0]
}

// Err is the error that stopped the queue.
func (b *RxBase) Err() error { return b.err }

// Fail stops the queue and has all senders that wait woken. It returns false if the queue has
// stopped already.
func (b *RxBase) Fail(err error) bool {
	if b.err != nil {
		return false
	}
	b.err, b.failed = err, true
	b.WakeAll()
	return true
}

// Restart forgets the error: the driver sets the queue up again, or has ended it.
func (b *RxBase) Restart() { b.err = nil }

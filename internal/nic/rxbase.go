package nic

import (
	"slices"
	"sync"
	"sync/atomic"

	"vnic.dev/vnic/internal/wire"
)

// RxBase is the part of a receive queue that is the same in all device models: its lock, the senders that wait
// for buffers, and the error that stopped the queue. Init comes before other methods.
//
// Waiting ports take turns, however many queues each waits with. RxBase wakes one waiter (PortWaker) for up to
// turnBuffers buffers: of the port that has had fewest frames, the first in line. A port has at most one turn at
// a time, which ends with the waiter's Disarm, its next Arm or WakeAll. A waiter without a port is woken whenever
// the driver posts buffers.
//
// A sender that is awake sends without a turn. But while another port has a turn, a port that is more than
// mostLead frames ahead of it gets no turn, and Admit refuses its frames unless it has a turn already.
//
// Unlock wakes senders and reports an error after it has released the lock.
type RxBase struct {
	model   RxModel
	waiting atomic.Int32 // waiting senders, one inside Arm included

	mu       sync.Mutex
	ports    []portTurns // under mu, as the fields below
	served   int
	portless []wire.Waker // without a port
	posts    uint64       // calls of WakeNext
	woken    []wire.Waker
	err      error
	failed   bool
}

const (
	turnBuffers = 32  // buffers for one turn
	mostLead    = 128 // frames that a port may be ahead of a port with a turn
	mostLag     = 256 // most credit in frames when a port waits again
	keepTurns   = 64  // calls of WakeNext, since a port last began to wait, until it is forgotten if idle
)

type portTurns struct {
	serial  uint32 // wire.Link.Serial
	waiters []waiter
	turn    wire.Waker // woken, and not disarmed since; nil: none
	before  int        // took at the start of the turn
	vain    wire.Waker // the waker whose turn sent nothing
	took    int        // frames taken, plus a start value from served
	posts   uint64     // RxBase.posts when the port last began to wait, or Admit added it
}

type waiter struct {
	wire.Waker
	posts uint64 // RxBase.posts when it last looked for buffers
}

// PortWaker is a wire.Waker of a port, which may have several. Once woken, it must be disarmed as soon as its
// sender has no more frames to send now.
type PortWaker interface {
	wire.Waker
	// PortSerial is the wire.Link.Serial of the port; 0: no port. It must not change while the waker waits or has a
	// turn.
	PortSerial() uint32
}

// RxModel is the device model's part of an RxBase.
type RxModel interface {
	// AwaitBuffers makes the driver notify the device when it posts buffers; the model calls WakeNext then. It
	// returns false if there are already more buffers than the last refused frame found, or if the queue does not
	// run. It is called under the lock.
	AwaitBuffers() bool
	// Buffers is the approximate number of buffers. It is called under the lock.
	Buffers() int
	// Stopped reports the error of a Fail. It is called without the lock, and must not wait.
	Stopped(err error)
}

// Init sets the device model's part.
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

// Arm implements wire.Waitable. It may make a sender wait in spite of free buffers, for another sender's turn.
func (b *RxBase) Arm(w wire.Waker) bool {
	b.Lock()
	defer b.Unlock()
	b.waiting.Add(1) // before AwaitBuffers looks: a driver posts first, and then reads Waiting
	b.disarm(w)
	more := b.err != nil || !b.model.AwaitBuffers()
	serial, looked := serialOf(w), b.posts
	if more {
		looked-- // it has not seen the buffers posted last
	}
	switch p := b.find(serial); {
	case more && (p == nil || p.idle() && !b.leads(p)):
		b.waiting.Add(-1)
		return false
	case serial == 0:
		b.portless = append(b.portless, w)
	default:
		if p == nil {
			p = b.add(serial)
		}
		if p.idle() {
			p.took = max(p.took, b.served-mostLag)
		}
		pos := len(p.waiters)
		if p.vain == w {
			pos, p.vain = 0, nil
		}
		p.waiters, p.posts = slices.Insert(p.waiters, pos, waiter{w, looked}), b.posts
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

// disarm removes a waiter, or ends its turn.
func (b *RxBase) disarm(w wire.Waker) {
	serial := serialOf(w)
	if serial == 0 {
		if i := slices.Index(b.portless, w); i >= 0 {
			b.portless = slices.Delete(b.portless, i, i+1)
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

// goOn gives other waiters a turn if buffers are left. If these were too few for the last frame, they may be
// enough for a waiter that has not looked since the last post.
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

// giveTurns gives turns to ports without one, as many as the buffers allow. Without all, only waiters that have
// not looked since the last WakeNext may get one.
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

// next returns the port whose turn is next, and the index of its waiter; nil: none.
func (b *RxBase) next(all bool) (least *portTurns, index int) {
	for i := range b.ports {
		p := &b.ports[i]
		if p.turn != nil || least != nil && p.took >= least.took {
			continue
		}
		for j := range p.waiters {
			if all || p.waiters[j].posts != b.posts {
				least, index = p, j
				break
			}
		}
	}
	if least != nil && b.leads(least) { // the other candidates have had as many frames or more
		return nil, 0
	}
	return least, index
}

func (b *RxBase) leads(p *portTurns) bool {
	for i := range b.ports {
		if o := &b.ports[i]; o.turn != nil && o.behind(p) {
			return true
		}
	}
	return false
}

func (p *portTurns) behind(o *portTurns) bool { return o != p && o.took-p.took > mostLead }

// Admit reports whether the Port may put frames of a sending port now. The caller holds the lock.
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
	case waits && p == nil: // Delivered counts it from now on
		b.add(serial).posts = b.posts
		return true
	case !behind || p.turn != nil:
		return true
	case !b.model.AwaitBuffers(): // the kick may be on its way
		b.giveTurns(true)
	}
	p = b.find(serial) // AwaitBuffers may have moved p
	return p == nil || !b.leads(p)
}

// Delivered counts the frames of one sending port that the queue took. The caller holds the lock.
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

func serialOf(w wire.Waker) uint32 {
	if p, ok := w.(PortWaker); ok {
		return p.PortSerial()
	}
	return 0
}

func (b *RxBase) find(serial uint32) *portTurns {
	for i := range b.ports {
		if b.ports[i].serial == serial {
			return &b.ports[i]
		}
	}
	return nil
}

// add adds a port, in the memory of a forgotten one if there is one.
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

func (p *portTurns) idle() bool { return p.turn == nil && len(p.waiters) == 0 }

// Waiting reports whether senders wait, and needs no lock. A caller that has made buffers visible before misses
// no sender.
func (b *RxBase) Waiting() bool { return b.waiting.Load() > 0 }

// WakeNext makes Unlock wake ports whose turn is next, and the waiters without a port. It is called under the
// lock when the driver has posted buffers.
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

func (b *RxBase) forget(n int) {
	for i := n; i < len(b.ports); i++ {
		p := &b.ports[i]
		clear(p.waiters)
		*p = portTurns{waiters: p.waiters[:0]}
	}
	b.ports = b.ports[:n]
}

// WakeAll makes Unlock wake all waiters, and ends all turns. It is called under the lock.
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
	b.waiting.Add(-int32(len(b.portless)))
	b.woken = append(b.woken, b.portless...)
	clear(b.portless)
	b.portless = b.portless[:0]
}

// Err returns the error that stopped the queue.
func (b *RxBase) Err() error { return b.err }

// Fail stops the queue, and makes Unlock wake all waiters. It returns false if the queue has stopped already. It
// is called under the lock.
func (b *RxBase) Fail(err error) bool {
	if b.err != nil {
		return false
	}
	b.err, b.failed = err, true
	b.WakeAll()
	return true
}

// Restart clears the error.
func (b *RxBase) Restart() { b.err = nil }

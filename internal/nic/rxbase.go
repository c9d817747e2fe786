package nic

import (
	"slices"
	"sync"
	"sync/atomic"

	"vnic.dev/vnic/internal/wire"
)

// RxBase is the common part of receive queues, of device models and others: the lock, the senders that wait
// for buffers, and the error that stopped the queue. Init comes before other methods.
//
// Waiting ports take turns, however many queues each waits with. To give a port a turn, RxBase wakes one of the port's
// waiters (PortWaker), normally the first in line. There may be one turn for each turnBuffers free buffers, rounded
// up, but at least one; the next turn goes to the waiting port that has had fewest frames (took). A port has at most
// one turn at a time, which ends with the waiter's Disarm, its next Arm or WakeAll. WakeNext wakes all waiters without
// a port.
//
// A sender that is awake sends without a turn. But while another port has a turn, a port that is more than
// mostLead frames ahead of it gets no turn, and Admit refuses its frames unless it has a turn already.
//
// Unlock wakes senders and reports an error after it has released the lock.
type RxBase struct {
	model   RxModel
	waiting atomic.Int32 // waiters that have not been woken, one inside Arm included

	mu       sync.Mutex
	ports    []portTurns  // under mu, as the fields below
	served   int          // greatest took of any port so far
	portless []wire.Waker // waiters without a port
	posts    uint64       // calls of WakeNext
	woken    []wire.Waker // for Unlock to wake
	err      error
	failed   bool
}

const (
	turnBuffers = 32  // buffers for one turn
	mostLead    = 128 // frames that a port may be ahead of a port with a turn
	mostLag     = 256 // most that an idle port's took may be below RxBase.served when the port begins to wait
	keepTurns   = 64  // an idle port is forgotten after more calls of WakeNext than this since portTurns.posts was set
)

type portTurns struct {
	serial  uint32 // wire.Link.Serial
	waiters []waiter
	turn    wire.Waker // the waiter that was woken for the port's turn; nil: the port has no turn
	before  int        // took at the start of the turn
	vain    wire.Waker // waker of the port's last ended turn, if the queue took no frame of the port in it; else nil
	took    int        // frames of the port that the queue took, plus start values from served (add, Arm)
	posts   uint64     // RxBase.posts when a waiter of the port was last added, or Admit added the port
}

type waiter struct {
	wire.Waker
	posts uint64 // RxBase.posts when the waiter was added; one less if there were buffers that it had not seen
}

// PortWaker is a wire.Waker of a port; a port may have several. A woken one may have its port's turn: its sender must
// disarm it, or arm it again, as soon as the sender has sent what it can send now.
type PortWaker interface {
	wire.Waker
	// PortSerial is the wire.Link.Serial of the port; 0: no port. It must not change while the waker waits or has a
	// turn.
	PortSerial() uint32
}

// RxModel is the part of a receive queue that RxBase calls.
type RxModel interface {
	// AwaitBuffers returns false if senders need not wait: there may be enough buffers now (in a device model: more
	// than the last refused frame found), or the queue does not run. Otherwise the queue calls WakeNext or WakeAll
	// when buffers come; a device model asks its driver for a notification. The caller holds the lock.
	AwaitBuffers() bool
	// Buffers is the approximate number of free buffers. The caller holds the lock.
	Buffers() int
	// Stopped reports the error of a Fail. The caller does not hold the lock. Stopped must not wait.
	Stopped(err error)
}

// Init sets the RxModel.
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

// Arm implements wire.Waitable. It may make a sender wait in spite of free buffers, if the sender's port has waiters or
// a turn already, or is more than mostLead frames ahead of a port with a turn.
func (b *RxBase) Arm(w wire.Waker) bool {
	b.Lock()
	defer b.Unlock()
	b.waiting.Add(1) // before AwaitBuffers looks: a caller of Waiting has made buffers visible before
	b.disarm(w)
	more := b.err != nil || !b.model.AwaitBuffers()
	serial, looked := serialOf(w), b.posts
	if more {
		looked-- // w has not seen the buffers posted last
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

// disarm removes a waiter, or ends its turn and may give others a turn (goOn). The caller holds the lock.
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

// goOn gives turns to waiters if buffers are left. Even if these were too few for the last refused frame, they may be
// enough for a waiter that has not looked since the last WakeNext.
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

// giveTurns gives turns to ports without one, as many as the buffers allow. If all is false, only waiters that have not
// looked for buffers since the last WakeNext may get one.
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

// next returns the port that gets the next turn, and the index of the waiter to wake; nil: none. all is as in
// giveTurns.
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
	if least != nil && b.leads(least) { // the other candidates have had as many frames or more: they lead, too
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
	case waits && p == nil: // from now on Delivered counts the port's frames
		b.add(serial).posts = b.posts
		return true
	case !behind || p.turn != nil:
		return true
	case !b.model.AwaitBuffers(): // there are buffers, and the driver's kick may be on its way
		b.giveTurns(true)
	}
	p = b.find(serial) // AwaitBuffers may have moved p
	return p == nil || !b.leads(p)
}

// Delivered counts the packets of batch that the queue took, unless their sending port has no entry in ports. All
// packets come from one port. The caller holds the lock.
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

// add adds a port, in the memory of a forgotten port if there is one.
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

// Waiting reports whether senders wait that have not been woken; it needs no lock. A caller that has made buffers
// visible before misses no sender.
func (b *RxBase) Waiting() bool { return b.waiting.Load() > 0 }

// WakeNext gives turns to ports, for which Unlock wakes waiters, and makes Unlock wake all waiters without a port. The
// caller holds the lock, and calls WakeNext when there may be new buffers.
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

// WakeAll makes Unlock wake all waiters, and ends all turns. The caller holds the lock.
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

// Err returns the error that stopped the queue; nil: none. The caller holds the lock.
func (b *RxBase) Err() error { return b.err }

// Fail records the error that stops the queue, and makes Unlock wake all waiters and report the error. It returns
// false, and does nothing, if there is such an error already. The caller holds the lock.
func (b *RxBase) Fail(err error) bool {
	if b.err != nil {
		return false
	}
	b.err, b.failed = err, true
	b.WakeAll()
	return true
}

// Restart clears the error. The caller holds the lock.
func (b *RxBase) Restart() { b.err = nil }

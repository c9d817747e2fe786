package gateway

import (
	"slices"
	"sync"

	"gvisor.dev/gvisor/pkg/buffer"

	"vnic.dev/vnic/stack/internal/ether"
	"vnic.dev/vnic/wire"
)

// Bounds of what waits for netstack.
const (
	inboxFrames = 512
	inboxBytes  = 4 << 20
)

// arrived is a frame that the wire delivered, from its network header on.
type arrived struct {
	view      *buffer.View
	proto     uint16 // EtherType
	group     bool   // its link address was a group's
	solicited bool   // it is a router solicitation
}

// inbox is the queue of frames for netstack. Senders wait when it is full; not
// for long, as its reader never waits.
type inbox struct {
	mu      sync.Mutex
	queue   []arrived // oldest first
	used    int       // frames in the queue, and those for which a sender has reserved space
	bytes   int       // of the same
	waiting []wire.Waker
	closed  bool
	filled  chan struct{} // capacity 1: there is something in the queue, or it is closed
}

func newInbox() *inbox { return &inbox{filled: make(chan struct{}, 1)} }

// reserve takes space for a frame of n bytes. full: there is none now.
func (q *inbox) reserve(n int) (full, closed bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || q.used >= inboxFrames || q.bytes+n > inboxBytes && q.used > 0 {
		return !q.closed, q.closed
	}
	q.used++
	q.bytes += n
	return false, false
}

// unreserve gives space for n bytes back that was not needed.
func (q *inbox) unreserve(n int) {
	q.mu.Lock()
	q.used--
	q.bytes -= n
	wake := q.takeWaiters()
	q.mu.Unlock()
	wakeAll(wake)
}

// put adds a frame, for which space is reserved.
func (q *inbox) put(a arrived) {
	q.mu.Lock()
	q.queue = append(q.queue, a)
	q.mu.Unlock()
	ether.Signal(q.filled)
}

// take empties the queue. It appends the frames to into.
func (q *inbox) take(into []arrived) (got []arrived, closed bool) {
	q.mu.Lock()
	into = append(into, q.queue...)
	clear(q.queue)
	q.queue = q.queue[:0]
	for i := range into {
		q.used--
		q.bytes -= into[i].view.Size()
	}
	wake := q.takeWaiters()
	closed = q.closed
	q.mu.Unlock()
	wakeAll(wake)
	return into, closed
}

// takeWaiters gives the wakers to be called if there is space again. Under mu.
func (q *inbox) takeWaiters() []wire.Waker {
	if len(q.waiting) == 0 || !q.closed && (q.used > inboxFrames/2 || q.bytes > inboxBytes/2) {
		return nil
	}
	w := q.waiting
	q.waiting = nil
	return w
}

// close refuses all further frames. What is in the queue stays there.
func (q *inbox) close() {
	q.mu.Lock()
	q.closed = true
	wake := q.takeWaiters()
	q.mu.Unlock()
	wakeAll(wake)
	ether.Signal(q.filled)
}

// Arm implements wire.Waitable.
func (q *inbox) Arm(w wire.Waker) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || q.used <= inboxFrames/2 && q.bytes <= inboxBytes/2 {
		return false
	}
	if !slices.Contains(q.waiting, w) {
		q.waiting = append(q.waiting, w)
	}
	return true
}

// Disarm implements wire.Waitable.
func (q *inbox) Disarm(w wire.Waker) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if i := slices.Index(q.waiting, w); i >= 0 {
		q.waiting = slices.Delete(q.waiting, i, i+1)
	}
}

func wakeAll(ws []wire.Waker) {
	for _, w := range ws {
		w.Wake()
	}
}

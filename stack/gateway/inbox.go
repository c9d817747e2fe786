package gateway

import (
	"gvisor.dev/gvisor/pkg/buffer"

	"vnic.dev/vnic/nic"
	"vnic.dev/vnic/stack/internal/ether"
)

// Bounds of what waits for netstack.
const (
	inboxFrames = 512
	inboxBytes  = 4 << 20
)

// arrived is a frame that the wire delivered, from its network header on.
type arrived struct {
	view      *buffer.View
	payload   *buffer.View // behind view; nil: view has all
	from      uint32       // wire.Packet.From
	proto     uint16       // EtherType
	group     bool         // its link address was a group's
	solicited bool         // it is a router solicitation
	beyond    bool         // netstack does not get it: filter.pingBeyond
}

// size is how much of the inbox's space it takes.
func (a *arrived) size() int { return a.view.Size() + a.payload.Size() }

// release lets go of a frame that netstack does not get.
func (a *arrived) release() {
	a.view.Release()
	if a.payload != nil {
		a.payload.Release()
	}
}

// inbox is the queue of frames for netstack. Senders wait when it is full, on its RxBase; not for
// long, as its reader never waits.
type inbox struct {
	nic.RxBase           // its lock is that of all that follows
	queue      []arrived // oldest first
	used       int       // frames in the queue, and those for which a sender has reserved space
	bytes      int       // of the same
	closed     bool
	filled     chan struct{} // capacity 1: there is something in the queue, or it is closed
}

func newInbox() *inbox {
	q := &inbox{filled: make(chan struct{}, 1)}
	q.Init(q)
	return q
}

// reserve takes space for a frame of n bytes. full: there is none now.
func (q *inbox) reserve(n int) (full, closed bool) {
	q.Lock()
	defer q.Unlock()
	if q.closed || q.used >= inboxFrames || q.bytes+n > inboxBytes && q.used > 0 {
		return !q.closed, q.closed
	}
	q.used++
	q.bytes += n
	return false, false
}

// unreserve gives space for n bytes back that was not needed.
func (q *inbox) unreserve(n int) {
	q.Lock()
	defer q.Unlock()
	q.used--
	q.bytes -= n
	q.relieve()
}

// put adds a frame, for which space is reserved.
func (q *inbox) put(a arrived) {
	q.Lock()
	q.queue = append(q.queue, a)
	q.Unlock()
	ether.Signal(q.filled)
}

// take empties the queue. It appends the frames to into.
func (q *inbox) take(into []arrived) (got []arrived, closed bool) {
	q.Lock()
	defer q.Unlock()
	into = append(into, q.queue...)
	clear(q.queue)
	q.queue = q.queue[:0]
	for i := range into {
		q.used--
		q.bytes -= into[i].size()
	}
	q.relieve()
	return into, q.closed
}

// close refuses all further frames. What is in the queue stays there.
func (q *inbox) close() {
	q.Lock()
	q.closed = true
	q.relieve()
	q.Unlock()
	ether.Signal(q.filled)
}

// AwaitBuffers implements nic.RxModel: senders wait until half of the space is free.
func (q *inbox) AwaitBuffers() bool {
	return !q.closed && (q.used > inboxFrames/2 || q.bytes > inboxBytes/2)
}

// relieve has senders woken if they need not wait any more. Under the lock.
func (q *inbox) relieve() {
	if !q.AwaitBuffers() {
		q.WakeAll()
	}
}

// Stopped implements nic.RxModel. Nothing of this queue can fail.
func (q *inbox) Stopped(error) {}

package gateway

import (
	"slices"
	"sync"
)

// Bounds of guests' datagrams that wait for a socket.
const (
	flowWaiting = 2 << 20  // bytes of a flow
	flowAlways  = 64 << 10 // bytes of a flow for which allWaiting does not matter
	allWaiting  = 32 << 20 // bytes of all flows together; beyond it a flow has only flowAlways
)

// backlog sends a guest's datagrams of one flow to the host's sockets, in order: with the function now if that can,
// otherwise with the function later, on a goroutine.
type backlog struct {
	gateway *Gateway
	now     func(*outgoing) bool // false: it cannot send at once; called under mu
	later   func(*outgoing)      // may wait; called without mu

	mu       sync.Mutex
	shutDown bool
	waiting  []outgoing
	bytes    int
	busy     bool
}

func (q *backlog) init(g *Gateway, now func(*outgoing) bool, later func(*outgoing)) {
	q.gateway, q.now, q.later = g, now, later
}

// send drops a datagram for which there is no room, and counts it as lost. After shut it drops without counting.
func (q *backlog) send(d outgoing) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.shutDown || !q.busy && q.now(&d) {
		return
	}
	n, total := len(d.data), &q.gateway.waiting
	if q.bytes+n > flowAlways && (q.bytes+n > flowWaiting || total.Load()+int64(n) > allWaiting) {
		q.gateway.count.udpLost.Add(1)
		return
	}
	q.waiting = append(q.waiting, d)
	q.bytes += n
	total.Add(int64(n))
	if !q.busy && q.gateway.serve(q.flush) {
		q.busy = true
	}
}

// buffer returns the buffer for one more socket of a flow. If there are flowSockets already, or the owner's share of
// the budget is used up, it closes the oldest socket, waits until its reader has ended, and returns that one's buffer.
func (q *backlog) buffer(e *entry, sockets *[]*flowSocket) (b *buffers) {
	var oldest *flowSocket
	q.mu.Lock()
	switch n := len(*sockets); {
	case n == 0:
		b = q.gateway.sockets.take(e.owner, e.nth, 1)
	case n < flowSockets:
		b = q.gateway.sockets.more(e.owner, e.nth)
	}
	if b == nil {
		oldest = (*sockets)[0]
		*sockets = slices.Delete(*sockets, 0, 1)
	}
	q.mu.Unlock()
	if oldest != nil {
		oldest.close()
		b = oldest.bufs
	}
	return b
}

func (q *backlog) next() (d outgoing, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) == 0 {
		q.busy = false
		return d, false
	}
	d = q.waiting[0]
	q.waiting = slices.Delete(q.waiting, 0, 1)
	q.free(len(d.data))
	return d, true
}

func (q *backlog) free(n int) {
	q.bytes -= n
	q.gateway.waiting.Add(-int64(n))
}

func (q *backlog) flush() {
	for d, ok := q.next(); ok; d, ok = q.next() {
		q.later(&d)
	}
}

// shut drops the waiting datagrams, and all later ones. The caller holds mu.
func (q *backlog) shut() {
	q.shutDown = true
	q.free(q.bytes)
	q.waiting = nil
}

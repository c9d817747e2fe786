package nic

import (
	"math/bits"
	"sync/atomic"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/control"
)

// Observer is told of what drivers set up at a port. It is called on a driver's or a device's goroutine, under locks of
// the port's: it returns at once, and calls no method of the port.
type Observer interface {
	// Changed tells of what commands have set up: before, and now. Both are the port's, not to be changed. Another
	// Generation is a reset, or another driver.
	Changed(was, is *control.State)
	// DeviceQueue tells that a receive queue has buffers in GPU memory, where its driver posts them without a command,
	// and that it has none any more.
	DeviceQueue(queue int, on bool)
}

// Observe has o told of what drivers set up from now on; nil: nobody.
func (p *Port) Observe(o Observer) {
	if o == nil {
		p.observer.Store(nil)
		return
	}
	p.observer.Store(&o)
}

// changed tells the observer.
func (p *Port) changed(was, is *control.State) {
	if o := p.observer.Load(); o != nil && was != nil {
		(*o).Changed(was, is)
	}
}

// queueSet is a set of receive queues. Any goroutine may change or read it.
type queueSet [MaxQueuePairs / 64]atomic.Uint64

func (s *queueSet) add(queue int) (is bool) {
	return s[queue/64].Or(1<<(queue%64))&(1<<(queue%64)) == 0
}

func (s *queueSet) remove(queue int) (was bool) {
	return s[queue/64].And(^uint64(1<<(queue%64)))&(1<<(queue%64)) != 0
}

func (s *queueSet) list() (queues []int) {
	for i := range s {
		for w := s[i].Load(); w != 0; w &= w - 1 {
			queues = append(queues, i*64+bits.TrailingZeros64(w))
		}
	}
	return queues
}

// NoteDeviceQueue says whether a receive queue that was started has buffers in GPU memory: for device models whose
// drivers bind without a command.
func (p *Port) NoteDeviceQueue(queue int, on bool) {
	changed := false
	if on {
		p.deviceQueues.add(queue)
		changed = p.deviceNow.add(queue)
	} else {
		changed = p.deviceNow.remove(queue)
	}
	if o := p.observer.Load(); o != nil && changed {
		(*o).DeviceQueue(queue, on)
	}
}

// DeviceQueues are the receive queues that have had buffers in GPU memory since the port was made, in their order.
func (p *Port) DeviceQueues() []int { return p.deviceQueues.list() }

// Poster is a receive queue that shows what its driver has posted. Posted calls visit with the places of posted
// buffers, and changes nothing. It looks at no more buffers than limit, or, where one can be of many pieces, begins
// none when it has seen so many of these. It is called under the lock, inside the epoch: visit returns at once.
type Poster interface {
	Posted(limit int, visit func([]dma.Segment))
}

// maxPosted is how many buffers are looked at under one hold of a queue's lock: as many as a large ring has.
const maxPosted = 4096

// Posted calls visit with places of buffers that are posted at a receive queue. It is for people: it holds the queue's
// lock for as long as it takes to read its ring.
func (p *Port) Posted(queue int, visit func([]dma.Segment)) {
	q, ok := p.queues[queue].wait.(Poster)
	if !ok {
		return
	}
	defer p.space.Leave(p.space.Enter())
	rq := p.queues[queue].q
	rq.Lock()
	defer rq.Unlock()
	q.Posted(maxPosted, visit)
}

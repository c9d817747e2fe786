package nic

import (
	"math/bits"
	"sync/atomic"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/control"
)

// Observer gets notifications about changes that drivers make to a port. The methods must return at once and
// call no method of the port.
type Observer interface {
	// Changed gets the State before and after a change, and must not change them. A new Generation means a device
	// reset, or another driver.
	Changed(was, now *control.State)
	// DeviceQueue reports that the first buffer of a receive queue lies in GPU memory (on), or after a new start of the
	// queue no longer does. It is called for NICs whose driver posts such buffers without a command.
	DeviceQueue(queue int, on bool)
}

// Observe makes o the port's only observer from now on; nil: none.
func (p *Port) Observe(o Observer) {
	if o == nil {
		p.observer.Store(nil)
		return
	}
	p.observer.Store(&o)
}

func (p *Port) changed(was, now *control.State) {
	if o := p.observer.Load(); o != nil && was != nil {
		(*o).Changed(was, now)
	}
}

type queueSet [MaxQueuePairs / 64]atomic.Uint64

func (s *queueSet) add(queue int) (added bool) {
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

// NoteDeviceQueue records whether a receive queue has buffers in GPU memory, and calls the observer if that has
// changed. Device models call it whose drivers post such buffers without a command.
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

// DeviceQueues returns, sorted, the receive queues that have been bound to GPU memory, or have had buffers
// there.
func (p *Port) DeviceQueues() []int { return p.deviceQueues.list() }

// Poster is a receive queue that can list posted buffers. Posted calls visit with the segments of each of at most limit
// buffers. Its caller holds the queue's lock and is inside the epoch of the port's address space.
type Poster interface {
	Posted(limit int, visit func([]dma.Segment))
}

// maxPosted bounds the buffers that one call of Posted looks at.
const maxPosted = 4096

// Posted calls visit with the segments of each of at most maxPosted buffers posted at a receive queue, if the queue is
// a Poster. Posted holds the queue's lock meanwhile.
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

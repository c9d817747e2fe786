package nic

import (
	"math/bits"
	"sync/atomic"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/control"
)

// Observer gets notifications about changes that drivers make to a port. The port calls its methods
// on the goroutine that makes the change, perhaps under locks of the port: they must return at once
// and call no method of the port.
type Observer interface {
	// Changed gets the State before and after a change. Both belong to the port; the Observer must
	// not change them. A new Generation means a device reset, or another driver.
	Changed(was, now *control.State)
	// The port calls DeviceQueue when a receive queue gets its first buffers in GPU memory (on), and
	// when it has none any more, on NICs whose driver posts such buffers without a command.
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

// changed notifies the observer.
func (p *Port) changed(was, now *control.State) {
	if o := p.observer.Load(); o != nil && was != nil {
		(*o).Changed(was, now)
	}
}

// queueSet is a set of receive queues. Any goroutine may change or read it.
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

// NoteDeviceQueue records whether a started receive queue has buffers in GPU memory, for device
// models whose drivers bind without a command.
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

// DeviceQueues returns, sorted, the receive queues that have been bound to GPU memory, or have had
// buffers there, since NewPort.
func (p *Port) DeviceQueues() []int { return p.deviceQueues.list() }

// Poster is a receive queue that can list posted buffers. Posted calls visit with the segments of
// each buffer, and changes nothing. It looks at no more than limit buffers; if a buffer can have
// many segments, it starts no buffer after limit segments. The caller of Posted holds the queue's
// lock and is inside the epoch, so visit must return at once.
type Poster interface {
	Posted(limit int, visit func([]dma.Segment))
}

// maxPosted bounds the buffers that Posted looks at under one hold of a queue's lock: the size of a
// large ring.
const maxPosted = 4096

// Posted calls visit with the segments of buffers posted at a receive queue. It is only for
// inspection by people, because it holds the queue's lock while it reads the ring.
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

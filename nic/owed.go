package nic

import (
	"bytes"
	"sync"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/wire"
)

// maxOwed is how many frames of the control channel wait for buffers; a driver has fewer requests under way.
const maxOwed = 32

// owed are frames of the control channel that found no buffer on receive queue 0. They are put
// there when it has some, by a goroutine of that moment: whoever wakes others cannot do it, as a
// driver's call may keep one for long.
type owed struct {
	port   *Port
	copier *dma.Copier // the goroutine's
	work   sync.WaitGroup

	mu     sync.Mutex
	frames [][]byte // under mu
	active bool     // under mu: there is a goroutine, or the queue will wake one
	closed bool     // under mu
}

// add keeps a copy of a frame, unless there are too many.
func (o *owed) add(frame []byte) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed || len(o.frames) == maxOwed {
		return false
	}
	o.frames = append(o.frames, bytes.Clone(frame))
	if !o.active {
		o.active = true
		o.begin()
	}
	return true
}

// Wake implements wire.Waker: the queue has buffers, or it died.
func (o *owed) Wake() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.begin()
}

// begin starts the goroutine. The caller holds mu.
func (o *owed) begin() {
	if o.closed {
		return
	}
	o.work.Add(1)
	dma.Go(func() {
		defer o.work.Done()
		o.pay()
	})
}

// pay puts frames into the queue until there are none, or no buffer again.
func (o *owed) pay() {
	for frame := o.first(); frame != nil; frame = o.first() {
		var pkt wire.Packet
		ownFrame(&pkt, frame)
		res := o.port.tryOwn(o.copier, &pkt)
		if res != PutNoBuffer {
			o.remove(frame)
			o.port.lost(res)
		} else if o.port.queues[0].q.Arm(o) {
			return
		}
	}
}

func (o *owed) first() []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.frames) == 0 {
		o.active = false
		return nil
	}
	return o.frames[0]
}

// remove takes the first frame out, unless forget was there before.
func (o *owed) remove(frame []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.frames) > 0 && &o.frames[0][0] == &frame[0] {
		o.frames = o.frames[1:]
	}
}

// forget drops all frames: they are answers to a driver that is no more.
func (o *owed) forget() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.frames = nil
}

// close is forget, and returns when nothing of it runs.
func (o *owed) close() {
	o.forget()
	o.mu.Lock()
	o.closed = true
	o.mu.Unlock()
	o.port.queues[0].q.Disarm(o)
	o.work.Wait()
}

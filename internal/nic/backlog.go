package nic

import (
	"bytes"
	"sync"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/wire"
)

// maxBacklog is the most frames in a replyBacklog.
const maxBacklog = 32

// replyBacklog holds frames of the control channel that found no buffer on receive queue 0. Goroutines put them into
// the queue later: Wake must not block, and the interrupt that follows may. A goroutine may take mu while it holds the
// queue's lock, not the other way round.
type replyBacklog struct {
	port   *Port
	copier *dma.Copier // for flush
	work   sync.WaitGroup

	mu     sync.Mutex
	frames [][]byte // under mu
	active bool     // under mu: flush runs, or Wake will start it
	closed bool     // under mu
}

// add keeps a copy of a frame; false: full or closed.
func (b *replyBacklog) add(frame []byte) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || len(b.frames) == maxBacklog {
		return false
	}
	b.frames = append(b.frames, bytes.Clone(frame))
	if !b.active {
		b.active = true
		b.start()
	}
	return true
}

// Wake implements wire.Waker.
func (b *replyBacklog) Wake() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.start()
}

// start starts flush in a goroutine, unless the backlog is closed. The caller holds mu.
func (b *replyBacklog) start() {
	if b.closed {
		return
	}
	b.work.Add(1)
	dma.Go(func() {
		defer b.work.Done()
		b.flush()
	})
}

// flush puts the frames into the queue, and drops frames that the queue refuses for another reason than missing
// buffers. It ends when the backlog is empty, or when buffers are missing and Wake will start it again.
func (b *replyBacklog) flush() {
	rq := b.port.queues[0]
	for frame := b.first(); frame != nil; frame = b.first() {
		var pkt wire.Packet
		ownFrame(&pkt, frame)
		res, kept, wait := PutNoBuffer, false, wire.Waitable(rq.q)
		exhausted := b.port.exhausted()
		if exhausted {
			wait = &rq.exhaustion
		}
		b.port.with(rq, func() {
			b.mu.Lock() // so that clear waits until the frame is in the queue
			defer b.mu.Unlock()
			if kept = b.isFirst(frame); kept && !exhausted {
				res = rq.putOwn(b.copier, &pkt)
			}
		})
		switch {
		case !kept:
		case res != PutNoBuffer:
			b.remove(frame)
			b.port.lost(res)
		case wait.Arm(b):
			return
		}
	}
}

func (b *replyBacklog) first() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.frames) == 0 {
		b.active = false
		return nil
	}
	return b.frames[0]
}

// isFirst reports whether a frame is still the first one. The caller holds mu.
func (b *replyBacklog) isFirst(frame []byte) bool {
	return len(b.frames) > 0 && &b.frames[0][0] == &frame[0]
}

func (b *replyBacklog) remove(frame []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.isFirst(frame) {
		b.frames = b.frames[1:]
	}
}

// clear drops all frames. After a reset of the port no driver waits for them.
func (b *replyBacklog) clear() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.frames = nil
}

// close clears the backlog, makes add refuse frames, and waits for the backlog's goroutines.
func (b *replyBacklog) close() {
	b.clear()
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	rq := b.port.queues[0]
	rq.q.Disarm(b)
	rq.exhaustion.Disarm(b)
	b.work.Wait()
}

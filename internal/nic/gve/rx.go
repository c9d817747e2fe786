package gve

import (
	"fmt"
	"sync/atomic"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/nic"
)

// maxRxBufs bounds the buffers of a frame: Linux's MAX_SKB_FRAGS.
const maxRxBufs = 17

// maxOwn is the greatest length of wire.Packet.Header: a frame of the control channel lies in Header as a whole.
const maxOwn = max(nic.MaxHeader, control.MaxFrame)

// maxRSC returns the length of the longest GSO packet for buffers of bufSize bytes (wire.Limits.MaxBytes).
func maxRSC(bufSize int) uint32 { return uint32(min(maxRxBufs*bufSize, nic.MaxFrame)) }

// rxQueue is a receive queue: a ring of buffers, and a ring in which they come back in the same order.
//
// The control goroutine calls start, stop, doorbell and unmapping. RxBase's lock guards the fields below RxBase,
// except seen and count. The control goroutine, which alone changes p, on and rings, may read these without the lock.
type rxQueue struct {
	*shared
	id     int
	tail   atomic.Uint32 // index of the buffer posted next
	vector atomic.Int32  // MSI-X vector

	nic.RxBase
	p       rxParams
	on      bool
	seen    bool     // doorbell has looked at the first buffer since the start
	rings            // buffers and completions
	head    uint32   // buffers used since the start
	shown   uint32   // completions published since the start, one for each used buffer
	words   []uint32 // words that publish completions, by index in the ring
	short   uint32   // number of posted buffers when a frame last found too few
	bufs    [maxRxBufs]rxBuf
	frame   placement
	time    int64        // receive timestamp of the frames until the next Flush; 0: not read yet
	scratch [maxOwn]byte // copy of a frame's Header
	count   struct{ noBuffer, tooBig, badCsum, badBuffer counter }
}

var (
	_ nic.RxQueue = (*rxQueue)(nil)
	_ nic.Poster  = (*rxQueue)(nil)
)

func newRxQueue(s *shared, id int) *rxQueue {
	q := &rxQueue{shared: s, id: id}
	q.Init(q)
	return q
}

// start stops the queue if it runs, and starts it with no buffers posted. After an error the queue is stopped.
func (q *rxQueue) start(p rxParams) (err error) {
	q.stop()
	switch {
	case p.bufSize <= 0 || p.bufSize > rxMaxLen:
		return fmt.Errorf("receive queue %d: buffers of %d bytes, not 1 to %d: %w", q.id, p.bufSize, rxMaxLen, errBadRing)
	case p.headerSize < 0 || p.headerSize > rxMaxHdr:
		return fmt.Errorf("receive queue %d: header buffers of %d bytes, not up to %d: %w", q.id, p.headerSize, rxMaxHdr,
			errBadRing)
	case p.complSize < p.size:
		return fmt.Errorf("receive queue %d: %d completions for %d buffers: %w", q.id, p.complSize, p.size, errBadRing)
	}
	var r rings
	if err = r.pin(q.space, &p.ringParams, "buffers", rxBufLen, rxComplLen); err != nil {
		return fmt.Errorf("receive queue %d: %w", q.id, err)
	}
	q.Lock()
	defer q.Unlock()
	q.p, q.rings = p, r
	q.head, q.shown, q.short = 0, 0, 0
	q.tail.Store(0)
	q.vector.Store(int32(p.notify))
	q.words = make([]uint32, p.complSize)
	q.on, q.seen = true, false
	q.Restart()
	return nil
}

// stop stops the queue. After stop has returned, the queue does not touch rings and buffers.
func (q *rxQueue) stop() {
	q.Lock()
	defer q.Unlock()
	q.on = false
	q.Restart()
	q.shut()
}

func (q *rxQueue) shut() {
	q.rings.close()
	q.WakeAll()
}

// doorbell handles a write to the queue's doorbell: it sets tail, modulo the ring's length, and wakes senders that
// wait for buffers (WakeNext). It has no effect if the queue is stopped. Linux writes an index
// (gve_rx_write_doorbell_dqo), iPXE a counter (drivers/net/gve.c, gve_refill_rx).
func (q *rxQueue) doorbell(tail uint32) {
	if !q.on {
		return
	}
	tail &= q.in.mask
	q.tail.Store(tail)
	if !q.seen && tail != 0 {
		q.seen = true
		if q.device != nil {
			q.device(q.id, q.firstInGPU())
		}
	}
	if q.Waiting() {
		q.Lock()
		defer q.Unlock()
		q.WakeNext()
	}
}

// firstInGPU reports whether the next buffer to be used begins in GPU memory. The device assumes the same of the
// others.
func (q *rxQueue) firstInGPU() bool {
	defer q.space.Leave(q.space.Enter())
	q.Lock()
	defer q.Unlock()
	if q.Err() != nil || q.in.pins == nil {
		return false
	}
	if q.peek(1) != nil {
		return false // Put will meet the same error
	}
	segs, err := q.space.TranslateMax(nil, 1, q.bufs[0].addr, 1, dma.Write)
	return err == nil && len(segs) == 1 && segs[0].GPU() >= 0
}

// Posted implements nic.Poster.
func (q *rxQueue) Posted(limit int, visit func([]dma.Segment)) {
	if !q.on || q.Err() != nil || q.in.pins == nil {
		return
	}
	var buf [1]rxBuf
	var segs []dma.Segment
	for i, n := q.head, min(q.avail(), uint32(limit)); n > 0; i, n = i+1, n-1 {
		if q.read(i, buf[:]) != nil {
			return
		}
		var err error
		if segs, err = q.space.TranslateMax(segs[:0], maxPieces, buf[0].addr, uint64(q.p.bufSize), dma.Write); err == nil {
			visit(segs)
		}
	}
}

// unmapping stops the queue if one of its rings overlaps [iova, iova+n).
func (q *rxQueue) unmapping(iova, n uint64) {
	q.Lock()
	defer q.Unlock()
	if q.overlap(iova, n) {
		q.fail(fmt.Errorf("receive queue %d: %w", q.id, errUnmapped))
		q.shut()
	}
}

// Flush implements nic.RxQueue.
func (q *rxQueue) Flush() (call bool) {
	q.time = 0
	if q.shown == q.head || q.out.pins == nil {
		return false
	}
	if err := q.publish(); err != nil {
		q.fail(fmt.Errorf("receive queue %d: completions: %w", q.id, err))
	}
	return true
}

// publish shows completions to the driver: they become valid by the generation bit, which flips with each lap.
func (q *rxQueue) publish() (err error) {
	defer dma.Recover(&err)
	for ; q.shown != q.head; q.shown++ {
		word := q.words[q.shown&q.out.mask]
		if q.out.even(q.shown) {
			word |= rxGeneration
		}
		dma.StoreWord(q.out.entryAt(q.shown)[4:], word)
	}
	return nil
}

// Call implements nic.RxQueue.
func (q *rxQueue) Call() { q.notify.fire(int(q.vector.Load())) }

func (q *rxQueue) avail() uint32 { return (q.tail.Load() - q.head) & q.in.mask }

// AwaitBuffers implements nic.RxModel. It need not ask the driver for a notification: each doorbell write reaches the
// device.
func (q *rxQueue) AwaitBuffers() bool { return q.on && q.avail() <= q.short }

// Buffers implements nic.RxModel.
func (q *rxQueue) Buffers() int { return int(q.avail()) }

func (q *rxQueue) fail(err error) {
	if q.on {
		q.Fail(err)
	}
}

// Stopped implements nic.RxModel.
func (q *rxQueue) Stopped(err error) { q.failed(false, q.id, err) }

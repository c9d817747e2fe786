package gve

import (
	"fmt"
	"sync/atomic"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/nic"
)

// txBatch bounds the packets that a queue's Sender has at a time. It includes held ones, which wait for a receiver or a
// link.
const txBatch = 32

// txQueue is a transmit queue. While it is started, only its Sender's worker changes the fields below tail.
//
// The driver owns a descriptor again when the device has read it, and a packet's buffers when the device has
// completed the packet. So packets that the Sender holds use no descriptors, and cannot be put back into the ring.
//
// The control goroutine calls start, stop, doorbell, unmapping and close.
type txQueue struct {
	*shared
	id     int
	sender *nic.Sender
	t      *nic.Transmitter
	tail   atomic.Uint32 // index of the descriptor posted next

	block int // MSI-X vector; set, like the rings, before the worker starts
	rings
	head   uint32 // descriptors read since the start
	compl  uint32 // completions written since the start
	partly uint32 // tail at which the packet at head was incomplete; else noTail
	fired  uint32 // compl at the last Publish

	slots []txSlot // made at the first start: most queues are never used
	count struct{ bad, unmapped counter }
}

var (
	_ nic.TxQueue     = (*txQueue)(nil)
	_ nic.LateTxQueue = (*txQueue)(nil)
)

// noTail is no value of tail.
const noTail = ^uint32(0)

func newTxQueue(s *shared, id int, p *nic.Port) (*txQueue, error) {
	q := &txQueue{shared: s, id: id, t: p.NewTransmitter(txBatch)}
	o := nic.SenderOptions{Space: s.space, Batch: txBatch, Patience: s.patience, Spin: true}
	var err error
	q.sender, err = nic.NewSender(q, q.t, o)
	return q, err
}

// start stops the queue if it runs, and starts it with no descriptors posted. After an error the queue is stopped.
func (q *txQueue) start(p ringParams) error {
	q.stop()
	if err := q.rings.pin(q.space, &p, "descriptors", txDescLen, txComplLen); err != nil {
		return fmt.Errorf("transmit queue %d: %w", q.id, err)
	}
	if q.slots == nil {
		q.slots = make([]txSlot, txBatch)
	}
	q.block, q.head, q.compl, q.fired, q.partly = p.notify, 0, 0, 0, noTail
	q.tail.Store(0)
	q.sender.Start(-1, false)
	return nil
}

// stop stops the queue: the worker sends the packets that it has read from the ring or, if their receivers do not take
// them at once, drops them. Then stop unpins the rings.
func (q *txQueue) stop() {
	q.sender.Stop()
	q.rings.close()
}

// doorbell sets tail, modulo the ring's length (see rxQueue.doorbell), and wakes the Sender. It has no effect if the
// queue is stopped.
func (q *txQueue) doorbell(tail uint32) {
	if !q.sender.Started() {
		return
	}
	q.tail.Store(tail & q.in.mask)
	q.sender.Wake()
}

// unmapping stops the queue, and reports errUnmapped, if one of its rings overlaps [iova, iova+n).
func (q *txQueue) unmapping(iova, n uint64) {
	if q.sender.Started() && q.overlap(iova, n) {
		q.stop()
		q.failed(true, q.id, fmt.Errorf("transmit queue %d: %w", q.id, errUnmapped))
	}
}

func (q *txQueue) close() {
	q.stop()
	q.sender.Close()
}

// Done implements nic.TxQueue.
func (q *txQueue) Done(fs []*nic.TxFrame) (err error) {
	defer dma.Recover(&err)
	for _, f := range fs {
		q.finish(txPacketDone, q.slots[f.Slot].tag)
	}
	return nil
}

// Token implements nic.LateTxQueue.
func (q *txQueue) Token(f *nic.TxFrame) uint32 { return uint32(q.slots[f.Slot].tag) }

// DoneLate implements nic.LateTxQueue.
func (q *txQueue) DoneLate(tag uint32) (err error) {
	defer dma.Recover(&err)
	q.finish(txPacketDone, uint16(tag))
	return nil
}

// finish writes a completion. The caller guards it with dma.Recover.
func (q *txQueue) finish(kind, value uint16) {
	b := q.out.entryAt(q.compl)
	le.PutUint32(b[4:], 0)
	word := txComplWord(q.id, kind, value)
	if q.out.even(q.compl) {
		word |= txGeneration
	}
	dma.StoreWord(b, word)
	q.compl++
}

// Abandon implements nic.TxQueue.
func (q *txQueue) Abandon(*nic.TxFrame) (kept bool) { return false }

// Publish implements nic.TxQueue. Completions are valid as soon as finish has written them.
func (q *txQueue) Publish() (call bool) {
	call = q.fired != q.compl
	q.fired = q.compl
	return call
}

// Call implements nic.TxQueue.
func (q *txQueue) Call() { q.notify.fire(q.block) }

// Pending implements nic.TxQueue.
func (q *txQueue) Pending() bool {
	tail := q.tail.Load()
	return tail != q.head&q.in.mask && tail != q.partly
}

// Backlog implements nic.TxQueue.
func (q *txQueue) Backlog() (frames int, full bool) {
	frames = int((q.tail.Load() - q.head) & q.in.mask)
	return frames, nic.RingFull(len(q.slots)+frames, int(q.in.mask)+1)
}

// EnableKick implements nic.TxQueue. There is nothing to enable: each doorbell write wakes the Sender.
func (q *txQueue) EnableKick() (more bool) { return q.Pending() }

// DisableKick implements nic.TxQueue.
func (q *txQueue) DisableKick() {}

// Idle implements nic.TxQueue. It frees nothing: a slot's list has at most maxPieces segments for each buffer.
func (q *txQueue) Idle([]*nic.TxFrame) {}

// Stopped implements nic.TxQueue.
func (q *txQueue) Stopped(err error) {
	q.failed(true, q.id, fmt.Errorf("transmit queue %d: %w", q.id, err))
}

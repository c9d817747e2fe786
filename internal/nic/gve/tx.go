package gve

import (
	"fmt"
	"sync/atomic"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/nic"
)

// txBatch is how many packets of a queue are under way at one time, those that wait for a busy
// receiver included.
const txBatch = 32

// txQueue is a transmit queue, an nic.TxQueue. While it is started its sender's worker owns all but
// the marked fields.
//
// A descriptor is the driver's again when it is read, which a completion of its own says if asked
// for; a packet's buffers are when the packet is disposed of, which its completion says. So what
// waits for a busy receiver holds up no descriptors, and is never given back: it is sent, or
// dropped.
//
// start, stop, doorbell, unmapping and close belong to the control goroutine.
type txQueue struct {
	*shared
	id     int
	sender *nic.Sender
	t      *nic.Transmitter
	tail   atomic.Uint32 // as the doorbell says: where the driver posts next

	block int // notification block, set before the worker starts, as the rings
	rings
	head   uint32 // the next descriptor to be read, counted since the start
	compl  uint32 // the next completion to be written, likewise
	partly uint32 // what the tail was when the packet at head was not whole; noTail: it may be
	fired  uint32 // completions that the driver has been told of

	slots []txSlot // txBatch of them, made at the first start: most queues of a NIC are never used
	count struct{ bad, unmapped counter }
}

var (
	_ nic.TxQueue     = (*txQueue)(nil)
	_ nic.LateTxQueue = (*txQueue)(nil)
)

// noTail is no value of tail.
const noTail = ^uint32(0)

// newTxQueue makes a stopped queue, which close lets go of. The port exists already.
func newTxQueue(s *shared, id int, p *nic.Port) (*txQueue, error) {
	q := &txQueue{shared: s, id: id, t: p.NewTransmitter(txBatch)}
	o := nic.SenderOptions{Space: s.space, Batch: txBatch, Patience: s.patience, Spin: true}
	var err error
	q.sender, err = nic.NewSender(q, q.t, o)
	return q, err
}

// start begins with empty rings, which the driver has zeroed.
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

// stop returns when nothing touches rings or buffers any more. What was read from the ring is sent,
// or dropped.
func (q *txQueue) stop() {
	q.sender.Stop()
	q.rings.close()
}

// doorbell says that descriptors are posted up to tail, modulo the ring as rxQueue.doorbell has it.
func (q *txQueue) doorbell(tail uint32) {
	if !q.sender.Started() {
		return
	}
	q.tail.Store(tail & q.in.mask)
	q.sender.Wake()
}

// unmapping stops the queue, and has failed told, if one of its rings lies in [iova, iova+n).
func (q *txQueue) unmapping(iova, n uint64) {
	if q.sender.Started() && q.overlap(iova, n) {
		q.stop()
		q.failed(true, q.id, fmt.Errorf("transmit queue %d: %w", q.id, errUnmapped))
	}
}

// close lets go of the queue, for good.
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
	b := q.out.at(q.compl)
	le.PutUint32(b[4:], 0)
	word := txComplWord(q.id, kind, value)
	if q.out.even(q.compl) {
		word |= txGeneration
	}
	dma.StoreWord(b, word)
	q.compl++
}

// Abandon implements nic.TxQueue: what was read from the ring is gone.
func (q *txQueue) Abandon(*nic.TxFrame) (kept bool) { return false }

// Publish implements nic.TxQueue: completions are valid as soon as they are written.
func (q *txQueue) Publish() (call bool) {
	call = q.fired != q.compl
	q.fired = q.compl
	return call
}

// Call implements nic.TxQueue.
func (q *txQueue) Call() { q.notify.fire(q.block) }

// Pending implements nic.TxQueue: whether the driver has posted something that was not looked at.
func (q *txQueue) Pending() bool {
	tail := q.tail.Load()
	return tail != q.head&q.in.mask && tail != q.partly
}

// Backlog implements nic.TxQueue: a frame has one descriptor at least.
func (q *txQueue) Backlog() (frames int, full bool) {
	frames = int((q.tail.Load() - q.head) & q.in.mask)
	return frames, nic.RingFull(len(q.slots)+frames, int(q.in.mask)+1)
}

// EnableKick implements nic.TxQueue: each doorbell wakes the sender.
func (q *txQueue) EnableKick() (more bool) { return q.Pending() }

// DisableKick implements nic.TxQueue.
func (q *txQueue) DisableKick() {}

// Idle implements nic.TxQueue: what is kept for a frame is bounded by maxPieces.
func (q *txQueue) Idle([]*nic.TxFrame) {}

// Stopped implements nic.TxQueue.
func (q *txQueue) Stopped(err error) {
	q.failed(true, q.id, fmt.Errorf("transmit queue %d: %w", q.id, err))
}

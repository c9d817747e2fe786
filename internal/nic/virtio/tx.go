package virtio

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/vhostuser"
	"vnic.dev/vnic/virtq"
)

// txBatch is the Batch of a queue's Sender: the most frames that it sends at a time, held ones included.
const txBatch = 32

// txQueue is a transmit virtqueue. While the worker of its Sender runs, only the worker uses the fields without another
// comment.
type txQueue struct {
	vring               // vq, features and hdrLen are set before the worker starts; the control goroutine uses kick
	sender  *nic.Sender // used by the control goroutine
	t       *nic.Transmitter
	enabled atomic.Bool // set by the control goroutine

	peeked    [txBatch]virtq.Chain
	slots     [txBatch]txSlot
	completed bool // Done or DoneLate has completed frames since the last Publish
}

var (
	_ nic.TxQueue     = (*txQueue)(nil)
	_ nic.LateTxQueue = (*txQueue)(nil)
)

type txSlot struct {
	chain *virtq.Chain // points into txQueue.peeked, or to held; nil: the slot was never used
	held  virtq.Chain
	buf   [maxNetHdr + nic.MaxHeader]byte
}

func newTxQueue(d *Device, index int) (*txQueue, error) {
	q := &txQueue{t: d.port.NewTransmitter(txBatch)}
	q.init(d, index)
	o := nic.SenderOptions{Space: d.space, Batch: txBatch, Patience: d.conf.Patience, Spin: true,
		Pollers: d.conf.Port.Pollers}
	var err error
	q.sender, err = nic.NewSender(q, q.t, o)
	return q, err
}

// Gather implements nic.TxQueue.
func (q *txQueue) Gather(free []*nic.TxFrame) (filled, taken int, err error) {
	taken, err = q.vq.PeekBatch(q.peeked[:len(free)])
	enabled := q.enabled.Load()
	for i := range q.peeked[:taken] {
		c, f := &q.peeked[i], free[filled]
		if !enabled {
			q.t.Discard(wire.DropDisabled)
			q.vq.Commit(c.Head, 0)
			continue
		}
		if c.Fault != nil {
			q.unreached(c.Fault)
			q.t.Discard(wire.DropFault)
			q.vq.Commit(c.Head, 0)
			continue
		}
		s := &q.slots[f.Slot]
		s.chain = c
		if e := q.describe(f, s); e != nil {
			if !errors.Is(e, nic.ErrBadFrame) { // the queue stops: frames from i on stay with the driver
				q.vq.Rewind(taken - i)
				return filled, i, e
			}
			q.t.Discard(wire.DropBadFrame)
			q.vq.Commit(c.Head, 0)
			continue
		}
		filled++
	}
	return filled, taken, err
}

func (q *txQueue) describe(f *nic.TxFrame, s *txSlot) error {
	c, p := s.chain, &f.Packet
	if c.InLen > 0 {
		return fmt.Errorf("%w: head %d: device-writable buffer on a transmit queue", virtq.ErrBadChain, c.Head)
	}
	if err := nic.ParseFrame(q.t.Worker.Copier, c.Out, q.hdrLen, c.OutLen, s.buf[:], p); err != nil {
		return err
	}
	if err := (*netHdr)(s.buf[:]).meta(&p.Meta, q.features); err != nil {
		return err
	}
	p.Prepare()
	return nil
}

// Reload implements nic.TxQueue. With moved it reads the chain again, and returns an error, which stops the queue, if
// the driver has made the chain invalid.
func (q *txQueue) Reload(f *nic.TxFrame, moved bool) (ok bool, err error) {
	s := &q.slots[f.Slot]
	if s.chain != &s.held { // the next Gather will overwrite peeked
		s.held, *s.chain = *s.chain, s.held
		s.chain = &s.held
	}
	c := s.chain
	if moved {
		if err := q.vq.Load(c.Head, c); err != nil {
			return false, err
		}
		if c.Fault != nil {
			q.unreached(c.Fault)
			return false, nil
		}
	}
	if err := nic.RelocatePayload(c.Out, q.hdrLen, c.OutLen, &f.Packet); err != nil {
		return false, fmt.Errorf("%w: head %d: %w", virtq.ErrBadChain, c.Head, err)
	}
	return true, nil
}

// Done implements nic.TxQueue.
func (q *txQueue) Done(fs []*nic.TxFrame) error {
	for _, f := range fs {
		q.vq.Commit(q.slots[f.Slot].chain.Head, 0)
	}
	q.completed = true
	return nil
}

// Token implements nic.LateTxQueue.
func (q *txQueue) Token(f *nic.TxFrame) uint32 { return uint32(q.slots[f.Slot].chain.Head) }

// DoneLate implements nic.LateTxQueue.
func (q *txQueue) DoneLate(head uint32) error {
	q.vq.Commit(uint16(head), 0)
	q.completed = true
	return nil
}

// Abandon implements nic.TxQueue: it puts a frame back if no later one was taken from the ring; otherwise it completes
// the frame.
func (q *txQueue) Abandon(f *nic.TxFrame) (kept bool) {
	s := &q.slots[f.Slot]
	if q.vq.PutBack(s.chain.Head) {
		return true
	}
	q.vq.Commit(s.chain.Head, 0)
	return false
}

// Idle implements nic.TxQueue.
func (q *txQueue) Idle(held []*nic.TxFrame) {
	var busy [txBatch]*virtq.Chain // by slot
	for _, f := range held {
		busy[f.Slot] = q.slots[f.Slot].chain
	}
	for i := range q.slots {
		if chain := &q.slots[i].held; busy[i] != chain {
			chain.Trim()
		}
		if c := &q.peeked[i]; len(held) == 0 || !slices.Contains(busy[:], c) {
			c.Trim()
		}
	}
}

// Publish implements nic.TxQueue.
func (q *txQueue) Publish() (call bool) {
	call = q.shouldCall(q.vq.Publish() || q.owed && q.completed)
	q.completed = false
	return call
}

// Call implements nic.TxQueue.
func (q *txQueue) Call() { q.call.fire() }

// Pending implements nic.TxQueue.
func (q *txQueue) Pending() bool { return q.vq.Pending() }

// Backlog implements nic.TxQueue. For full, it assumes one descriptor for a frame or, without indirect descriptors, as
// many, on average, as the frames that used the slots last.
func (q *txQueue) Backlog() (frames int, full bool) {
	frames = q.vq.Available()
	each := 1
	if q.features&vhostuser.FeatureIndirect == 0 {
		all := 0
		for i := range q.slots {
			if c := q.slots[i].chain; c != nil {
				all += max(1, len(c.Out)+c.Empty)
			}
		}
		each = max(1, all/len(q.slots))
	}
	return frames, nic.RingFull(each*(q.vq.Held()+frames), int(q.vq.Size()))
}

// EnableKick implements nic.TxQueue.
func (q *txQueue) EnableKick() (more bool) { return q.vq.EnableKick() }

// DisableKick implements nic.TxQueue.
func (q *txQueue) DisableKick() { q.vq.DisableKick() }

// Stopped implements nic.TxQueue.
func (q *txQueue) Stopped(err error) {
	q.dev.recordStop(q.index, err)
	q.dev.failed(q.index, err)
	q.fault.fire()
}

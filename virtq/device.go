package virtq

import (
	"errors"
	"fmt"
	"math/bits"

	"vnic.dev/vnic/dma"
)

// Chain is one descriptor chain, translated: the device reads the segments in Out, and writes those in In. The
// next Peek or Load into the same Chain reuses or frees the slices.
type Chain struct {
	Head    uint16
	Out, In []dma.Segment
	OutLen  uint32
	InLen   uint32
	InFirst uint32 // bytes of In in the first non-empty writable buffer
	Empty   int    // number of empty buffers, which have no segment
	Descs   int    // descriptors of the ring's table that the chain takes; invalid with a Fault
	// Fault, if not nil, is the error for memory of the chain that the device cannot reach. It wraps dma.ErrUnmapped,
	// dma.ErrAccess or dma.ErrNotShared. Such a chain has no buffers.
	Fault error
}

// Trim empties the chain's lists, and frees a list that has room for more than dma.KeepSegments.
func (c *Chain) Trim() { c.Out, c.In = dma.Reuse(c.Out[:0]), dma.Reuse(c.In[:0]) }

// Config describes a split ring.
type Config struct {
	Size              uint16
	Desc, Avail, Used uint64 // IOVAs
	Base              Base   // where the ring goes on
	Indirect          bool   // VIRTIO_F_INDIRECT_DESC was negotiated
	EventIdx          bool   // VIRTIO_F_EVENT_IDX was negotiated
}

// Device is the device's end of a split virtqueue.
//
// Peek takes a chain; the owner may hold several. Commit stages a chain's return, in any order. Publish shows
// the driver the chains committed since the last Publish, by one store of used.idx. Rewind makes the chains that
// were peeked last available again, PutBack only the last one.
//
// After an error that stopped the queue, Peek and Load return that error; until Close the owner can still commit and
// publish chains that it has peeked before, if ring memory has not faulted. A fault of ring memory stops the queue. A
// translation miss (dma.ErrMiss) does not: the call can be repeated once the IOTLB has the entry.
type Device struct {
	size    uint16
	ring    deviceRing
	err     error // sticky
	open    bool
	resumed bool

	held  []bool  // by head: the chain is peeked and not committed
	order []taken // the taken chains by number, modulo its length

	next   pos           // position of the chain that is peeked next
	number uint32        // of the chain at next: how many chains before it were taken and not rewound
	known  uint32        // the chains from number to known-1 are available
	done   uint32        // how many chains were published
	staged []usedElement // committed, not yet published
}

// taken is a chain that the device has taken.
type taken struct {
	pos  pos
	head uint16
}

// NewDevice pins the ring's memory, checks its size and alignment, enables kicks, and calls dma.Guard for the calling
// goroutine. The Device writes used elements from the used.idx on that NewDevice finds in memory.
func NewDevice(s *dma.Space, c Config) (*Device, error) {
	r, err := pinSplit(s, c)
	if err != nil {
		return nil, err
	}
	return newDevice(s, c, r)
}

// newDevice returns a Device of the ring r, of any format. After an error r is closed.
func newDevice(s *dma.Space, c Config, r deviceRing) (*Device, error) {
	q := &Device{size: c.Size, ring: r, open: true}
	q.held = make([]bool, c.Size)
	q.order = make([]taken, 1<<bits.Len16(c.Size-1)) // a power of two
	q.staged = make([]usedElement, 0, c.Size)
	if q.start(c.Base); q.err != nil {
		q.Close()
		return nil, q.err
	}
	return q, nil
}

func (q *Device) start(b Base) {
	dma.Guard()
	defer dma.Recover(&q.err)
	q.next, q.resumed = q.ring.start(b)
	q.ring.enableKick(q.next, 0)
}

// Repin pins the ring's memory again after the space changed. After an error the queue keeps its old memory.
func (q *Device) Repin() error {
	if !q.open {
		return fmt.Errorf("closed: %w", ErrMisuse)
	}
	r, err := q.ring.repin()
	if err != nil {
		return err
	}
	q.ring = r
	return nil
}

// Close unpins the ring's memory.
func (q *Device) Close() {
	q.ring.close()
	q.open = false
	if q.err == nil {
		q.err = fmt.Errorf("closed: %w", ErrMisuse)
	}
}

// Err is the error that stopped the queue, or nil. After Close it is an ErrMisuse, if the queue had not stopped before.
func (q *Device) Err() error { return q.err }

// Peek loads the next available chain into c. It returns false if there is none, and with an error. The caller must be
// inside the space (dma.Space.Enter), and the segments are valid until it leaves the space.
func (q *Device) Peek(c *Chain) (ok bool, err error) {
	if q.err != nil {
		return false, q.err
	}
	if ok, err = q.peek(c); err != nil {
		q.stop(err)
	}
	return ok, err
}

// PeekBatch peeks up to len(cs) chains. With an error it also returns the n good chains before it.
func (q *Device) PeekBatch(cs []Chain) (n int, err error) {
	if q.err != nil {
		return 0, q.err
	}
	if err = q.peekBatch(cs, &n); err != nil {
		q.stop(err)
	}
	return n, err
}

func (q *Device) peek(c *Chain) (ok bool, err error) {
	defer dma.Recover(&err)
	return q.take(c)
}

// The count goes through a pointer, because a fault may end the call.
func (q *Device) peekBatch(cs []Chain, n *int) (err error) {
	defer dma.Recover(&err)
	for i := range cs {
		if ok, err := q.take(&cs[i]); !ok {
			return err
		}
		*n = i + 1
	}
	return nil
}

// stop makes err the queue's sticky error, unless it is a translation miss.
func (q *Device) stop(err error) {
	if !errors.Is(err, dma.ErrMiss) {
		q.err = err
	}
}

// take does the work of Peek, whose caller handles faults and the sticky error.
func (q *Device) take(c *Chain) (ok bool, err error) {
	if q.number == q.known {
		if ok, err = q.refresh(); !ok {
			return false, err
		}
	}
	var next pos
	if r, split := q.ring.(*splitDevice); split { // inlined, which a call through the interface is not
		next, err = r.take(q.next, c)
	} else {
		next, err = q.ring.take(q.next, c)
	}
	if err != nil || q.held[c.Head] {
		return false, q.refuse(c, err)
	}
	q.held[c.Head] = true
	*q.chain(q.number) = taken{q.next, c.Head}
	q.number++
	q.next = next
	return true, nil
}

// refuse empties c, whose chain is not taken, and returns err, or, if err is nil, the error of a head in use.
func (q *Device) refuse(c *Chain, err error) error {
	c.Out, c.In = nil, nil
	if err == nil {
		err = q.inUse(c.Head)
	}
	return err
}

func (q *Device) inUse(head uint16) error {
	return bad(head, "avail entry %d: made available again while in use", q.next)
}

func (q *Device) chain(number uint32) *taken { return &q.order[int(number)&(len(q.order)-1)] }

func (q *Device) refresh() (some bool, err error) {
	n, err := q.ring.available(q.next, int(q.number-q.done))
	q.known = q.number + uint32(n)
	return n > 0, err
}

// Load reads into c again a chain that the owner has peeked and not yet committed. The caller must be inside the space,
// as for Peek.
func (q *Device) Load(head uint16, c *Chain) error {
	if q.err != nil {
		return q.err
	}
	if !q.holds(head) {
		q.misused("load of head %d, which is not held", int(head))
		return q.err
	}
	err := q.load(head, c)
	if err != nil {
		q.stop(err)
	}
	return err
}

func (q *Device) load(head uint16, c *Chain) (err error) {
	defer dma.Recover(&err)
	if err = q.ring.load(head, c); err != nil {
		c.Out, c.In = nil, nil
	}
	return err
}

func (q *Device) holds(head uint16) bool { return int(head) < len(q.held) && q.held[head] }

func (q *Device) misused(format string, args ...any) {
	if q.err == nil {
		q.err = fmt.Errorf("%w: %w", ErrMisuse, fmt.Errorf(format, args...))
	}
}

// Rewind makes the last n peeked chains available again. None of them may be committed.
func (q *Device) Rewind(n int) {
	for ; n > 0; n-- {
		last := *q.chain(q.number - 1)
		if !q.holds(last.head) {
			q.misused("rewind past head %d, which is not held", int(last.head))
			return
		}
		q.held[last.head] = false
		q.next = last.pos
		q.number--
	}
}

// PutBack makes a peeked chain available again, if it is the last that was taken; else it returns false.
func (q *Device) PutBack(head uint16) (ok bool) {
	if !q.holds(head) {
		q.misused("put back of head %d, which is not held", int(head))
		return false
	}
	if q.chain(q.number-1).head != head {
		return false
	}
	q.Rewind(1)
	return true
}

// Commit stages the return of a peeked chain; written is how many bytes the device wrote to it.
func (q *Device) Commit(head uint16, written uint32) {
	if !q.holds(head) {
		q.misused("commit of head %d, which is not held", int(head))
		return
	}
	q.held[head] = false
	q.staged = append(q.staged, usedElement(head)|usedElement(written)<<32)
}

// ReturnUnused commits up to n available chains with nothing written, and returns their number. It reads no
// descriptor.
func (q *Device) ReturnUnused(n int) (returned int, err error) {
	if q.err != nil {
		return 0, q.err
	}
	if err = q.returnUnused(n, &returned); err != nil {
		q.stop(err)
	}
	return returned, err
}

func (q *Device) returnUnused(n int, returned *int) (err error) {
	defer dma.Recover(&err)
	for ; *returned < n; *returned++ {
		if q.number == q.known {
			if some, err := q.refresh(); !some {
				return err
			}
		}
		next, head, err := q.ring.head(q.next)
		if err != nil {
			return err
		}
		if q.held[head] {
			return q.inUse(head)
		}
		*q.chain(q.number) = taken{q.next, head}
		q.number++
		q.next = next
		q.staged = append(q.staged, usedElement(head))
	}
	return nil
}

// Publish shows the committed chains to the driver, and reports whether the driver wants a call.
func (q *Device) Publish() (call bool) {
	if !q.open || len(q.staged) == 0 {
		return false
	}
	defer dma.Recover(&q.err)
	call = q.ring.publish(q.staged)
	q.done += uint32(len(q.staged))
	q.staged = q.staged[:0]
	return call
}

// DisableKick tells the driver that the device needs no kick; one may still come.
func (q *Device) DisableKick() {
	if !q.open {
		return
	}
	defer dma.Recover(&q.err)
	q.ring.disableKick(q.next)
}

// EnableKick asks the driver for a kick at the next chain. If it returns true, the owner must peek before it
// sleeps.
func (q *Device) EnableKick() (more bool) { return q.EnableKickBeyond(0) }

// EnableKickBeyond asks the driver for a kick once more than n chains are available (without VIRTIO_F_EVENT_IDX: each
// time the driver makes chains available). If it returns true, the owner must peek before it sleeps.
func (q *Device) EnableKickBeyond(n int) (more bool) {
	if q.err != nil {
		return true
	}
	more = true // if the ring faults
	defer dma.Recover(&q.err)
	more = q.ring.enableKick(q.next, n)
	return more
}

// Pending reports whether Peek would return a chain or an error.
func (q *Device) Pending() (some bool) {
	if q.err != nil || q.number != q.known {
		return true
	}
	some = true // if the ring faults
	defer dma.Recover(&q.err)
	some = q.ring.pending(q.next)
	return some
}

// Available returns how many chains Peek has yet to take, without checking them; 0 if the queue is stopped or avail.idx
// is invalid.
func (q *Device) Available() (n int) {
	if q.err != nil {
		return 0
	}
	defer dma.Recover(&q.err)
	if n, err := q.ring.available(q.next, int(q.number-q.done)); err == nil {
		return n
	}
	return 0
}

// Held returns how many chains are peeked and not committed.
func (q *Device) Held() int { return int(q.number-q.done) - len(q.staged) }

// Base returns where the ring goes on. When the owner holds no chain and has published all, it is the answer to
// GET_VRING_BASE.
func (q *Device) Base() Base { return q.ring.base(q.next) }

// Resumed reports whether the Device was made with a Base other than the ring's start.
func (q *Device) Resumed() bool { return q.resumed }

// Size returns the ring's size.
func (q *Device) Size() uint16 { return q.size }

package virtq

import (
	"fmt"

	"vnic.dev/vnic/dma"
)

// Chain is one descriptor chain, translated. Out is what the device reads, In what it writes, each in order.
// The slices are reused by the next Peek or Load into the same Chain.
type Chain struct {
	Head    uint16
	Out, In []dma.Segment
	OutLen  uint32
	InLen   uint32
	InFirst uint32 // bytes of In that lie in the first writable buffer: a header buffer, to whoever splits
}

// Trim lets go of the segments of a chain that the caller is done with: of their memory too, if the
// driver made the chain long. The next Peek or Load does so if this one needed no long list; a
// Chain that waits for its next use, or has none, would keep what it has.
func (c *Chain) Trim() { c.Out, c.In = dma.Reuse(c.Out[:0]), dma.Reuse(c.In[:0]) }

// Config says where a split ring lies and what was negotiated for it.
type Config struct {
	Size              uint16
	Desc, Avail, Used uint64 // IOVAs
	Base              uint16 // avail index of the first chain not yet consumed
	Indirect          bool   // VIRTIO_F_INDIRECT_DESC
	EventIdx          bool   // VIRTIO_F_EVENT_IDX
}

// Device is the device's end of a split virtqueue.
//
// A chain goes through three states. Peek takes it; several may be held, as long as needed. Commit gives it back,
// in any order. Publish shows the driver all that was committed since the last one, by one store, as mergeable
// receive buffers need. Rewind puts the latest peeked back instead, and Peek will find them again.
//
// After an error Peek and Load give that error; what was peeked before can still be committed and published. Err has it
// too, also where a method returns none: ring memory may fault under any of them.
type Device struct {
	space *dma.Space
	conf  Config
	ring  deviceRing
	walk  walker
	err   error // sticky
	open  bool

	held  []bool   // by head: peeked and not committed
	order []uint16 // heads by avail index: what Rewind lets go of

	next   uint16   // avail index to be peeked next
	seen   uint16   // avail.idx last read
	done   uint16   // next, if all that were published had been the first ones; next-done are held or staged
	shown  uint16   // used.idx as stored
	staged []uint64 // used elements not yet published; cap is the ring's size, see refresh
}

// NewDevice pins the ring's memory and checks its size and alignment. The used index goes on from where ring memory
// says it is, and kicks are asked for: a device that was here before may have left them off, and the first kick is what
// starts a ring. From here on the calling goroutine is guarded (dma.Guard).
func NewDevice(s *dma.Space, c Config) (*Device, error) {
	if err := checkSize(c.Size); err != nil {
		return nil, err
	}
	q := &Device{space: s, conf: c, next: c.Base, seen: c.Base, done: c.Base}
	if err := q.pin(); err != nil {
		return nil, err
	}
	q.walk.init(s, &c)
	q.held = make([]bool, c.Size)
	q.order = make([]uint16, c.Size)
	q.staged = make([]uint64, 0, c.Size)
	if q.start(); q.err != nil {
		q.Close()
		return nil, q.err
	}
	return q, nil
}

// pin sets q.ring, or leaves it alone.
func (q *Device) pin() error {
	var r deviceRing
	if err := r.pin(q.space, &q.conf); err != nil {
		return err
	}
	r.flags = q.ring.flags
	q.ring.close()
	q.ring, q.open = r, true
	return nil
}

func (q *Device) start() {
	dma.Guard()
	defer dma.Recover(&q.err)
	q.shown = q.ring.usedIdx.load()
	q.ring.enableKick(q.shown, q.next)
}

// Repin takes hold of the ring's memory again, after the space changed. If it is no longer there the queue keeps the
// memory that it had, and must be closed.
func (q *Device) Repin() error {
	if !q.open {
		return fmt.Errorf("closed: %w", ErrMisuse)
	}
	return q.pin()
}

// Close releases the ring's memory. The queue touches it no more.
func (q *Device) Close() {
	q.ring.close()
	q.ring.descs, q.ring.avails, q.ring.useds = nil, nil, nil
	q.open = false
	if q.err == nil {
		q.err = fmt.Errorf("closed: %w", ErrMisuse)
	}
}

// Err is the error that stopped the queue, or nil.
func (q *Device) Err() error { return q.err }

// Peek loads the next available chain into c; without one it returns false. The caller is inside the space's
// epoch, and the segments are good as long as it stays there.
func (q *Device) Peek(c *Chain) (ok bool, err error) {
	if q.err != nil {
		return false, q.err
	}
	return q.peek(c), q.err
}

// PeekBatch is Peek for up to len(cs) chains, and cheaper. With an error come the n good chains before it.
func (q *Device) PeekBatch(cs []Chain) (n int, err error) {
	if q.err != nil {
		return 0, q.err
	}
	q.peekBatch(cs, &n)
	return n, q.err
}

func (q *Device) peek(c *Chain) bool {
	defer dma.Recover(&q.err)
	return q.take(c)
}

// peekBatch counts by a pointer, because a fault ends it in the middle.
func (q *Device) peekBatch(cs []Chain, n *int) {
	defer dma.Recover(&q.err)
	for i := range cs {
		if !q.take(&cs[i]) {
			return
		}
		*n = i + 1
	}
}

// take is Peek without a guard.
func (q *Device) take(c *Chain) bool {
	if q.next == q.seen && !q.refresh() {
		return false
	}
	head := q.ring.head(q.next)
	if int(head) >= len(q.held) {
		q.err = bad(head, "avail entry %d: ring of %d", q.next, len(q.held))
		return false
	}
	if q.held[head] {
		q.err = bad(head, "avail entry %d: made available again while in use", q.next)
		return false
	}
	if err := q.walk.walk(&q.ring, head, c); err != nil {
		c.Out, c.In, q.err = nil, nil, err
		return false
	}
	q.held[head] = true
	q.order[q.next&q.ring.mask] = head
	q.next++
	return true
}

// refresh reads avail.idx, once for all chains up to it. It may neither go back nor so far that more chains than the ring
// has heads are out: available, held or staged.
func (q *Device) refresh() (some bool) {
	idx := q.ring.avail()
	if size := uint16(len(q.held)); idx-q.next > size || idx-q.done > size {
		q.err = fmt.Errorf("%w: avail.idx went from %d to %d, ring of %d with %d in use", ErrBadChain, q.next, idx, size, q.next-q.done)
		return false
	}
	q.seen = idx
	return idx != q.next
}

// Load walks a chain again that was peeked and not yet committed: the memory map may have changed since, or the caller
// has left the epoch and entered it again.
func (q *Device) Load(head uint16, c *Chain) error {
	if q.err != nil {
		return q.err
	}
	q.load(head, c)
	return q.err
}

func (q *Device) load(head uint16, c *Chain) {
	defer dma.Recover(&q.err)
	if !q.holds(head) {
		q.misused("load of head %d, which is not held", int(head))
		return
	}
	if err := q.walk.walk(&q.ring, head, c); err != nil {
		c.Out, c.In, q.err = nil, nil, err
	}
}

func (q *Device) holds(head uint16) bool { return int(head) < len(q.held) && q.held[head] }

func (q *Device) misused(format string, args ...any) {
	if q.err == nil {
		q.err = fmt.Errorf("%w: %w", ErrMisuse, fmt.Errorf(format, args...))
	}
}

// Rewind makes the last n peeked chains available again; none of them may be committed.
func (q *Device) Rewind(n int) {
	for ; n > 0; n-- {
		head := q.order[(q.next-1)&q.ring.mask]
		if !q.holds(head) {
			q.misused("rewind past head %d, which is not held", int(head))
			return
		}
		q.held[head] = false
		q.next--
	}
}

// Commit stages the used element of a peeked chain, of which written bytes were written, for Publish.
func (q *Device) Commit(head uint16, written uint32) {
	if !q.holds(head) {
		q.misused("commit of head %d, which is not held", int(head))
		return
	}
	q.held[head] = false
	q.staged = append(q.staged, uint64(head)|uint64(written)<<32)
}

// Publish shows all committed chains to the driver by one store, and tells whether it wants a call.
func (q *Device) Publish() (call bool) {
	if !q.open || len(q.staged) == 0 {
		return false
	}
	defer dma.Recover(&q.err)
	i := q.shown
	for _, e := range q.staged {
		q.ring.put(i, e)
		i++
	}
	call = q.ring.publish(i, q.shown)
	q.done += i - q.shown
	q.shown, q.staged = i, q.staged[:0]
	return call
}

// DisableKick tells the driver that kicks are not needed; one may still come.
func (q *Device) DisableKick() {
	if !q.open {
		return
	}
	defer dma.Recover(&q.err)
	q.ring.disableKick(q.shown, q.next)
}

// EnableKick asks for a kick at the next chain. more says that there is one already, for which no kick may come: peek
// before sleeping. It says so of a stopped queue, too, so that its error is found.
func (q *Device) EnableKick() (more bool) {
	if q.err != nil {
		return true
	}
	more = true // should the ring fault
	defer dma.Recover(&q.err)
	more = q.ring.enableKick(q.shown, q.next) != q.next
	return more
}

// EnableKickBeyond is EnableKick for an owner whom n chains did not suffice, and who rewound them: it asks for a kick when
// there are more than n to peek (without EventIdx, at each), and more says that there are already.
func (q *Device) EnableKickBeyond(n int) (more bool) {
	if q.err != nil {
		return true
	}
	more = true // should the ring fault
	defer dma.Recover(&q.err)
	more = int(q.ring.enableKick(q.shown, q.next+uint16(n))-q.next) > n
	return more
}

// Pending tells whether Peek would find something; an error is something.
func (q *Device) Pending() (some bool) {
	if q.err != nil || q.next != q.seen {
		return true
	}
	some = true // should the ring fault
	defer dma.Recover(&q.err)
	some = q.ring.avail() != q.next
	return some
}

// Held is how many chains are peeked and not committed.
func (q *Device) Held() int { return int(q.next-q.done) - len(q.staged) }

// Base is the avail index of the first chain not consumed. With nothing held, and all published, it is what GET_VRING_BASE
// answers.
func (q *Device) Base() uint16 { return q.next }

// Size is the ring's size.
func (q *Device) Size() uint16 { return q.conf.Size }

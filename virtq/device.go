package virtq

import (
	"errors"
	"fmt"
	"math/bits"

	"vnic.dev/vnic/dma"
)

// Chain is one descriptor chain, translated. Out is what the device reads, In what it writes, each in order.
// The slices are reused by the next Peek or Load into the same Chain.
type Chain struct {
	Head    uint16
	Out, In []dma.Segment
	OutLen  uint32
	InLen   uint32
	InFirst uint32 // bytes of In that lie in the first writable buffer: a header buffer, to a device that splits
	Empty   int    // empty buffers, which have no segment
	Descs   int    // descriptors of the ring's table that it takes: one for all of an indirect table
	// Fault says which memory of the chain the device cannot reach, as it is not mapped (dma.ErrUnmapped), not to be used
	// in this way (dma.ErrAccess) or not shared (dma.ErrNotShared); nil: none. Such a chain has no buffers. It is taken as
	// any other, and the owner commits it.
	Fault error
}

// Trim lets go of the segments of a chain that the caller is done with: of their memory too, if the
// driver made the chain long. The next Peek or Load does so if this one needed no long list; a
// Chain that waits for its next use, or has none, would keep what it has.
func (c *Chain) Trim() { c.Out, c.In = dma.Reuse(c.Out[:0]), dma.Reuse(c.In[:0]) }

// Config says where a split ring lies and what was negotiated for it.
type Config struct {
	Size              uint16
	Desc, Avail, Used uint64 // IOVAs
	Base              Base   // where the ring goes on
	Indirect          bool   // VIRTIO_F_INDIRECT_DESC
	EventIdx          bool   // VIRTIO_F_EVENT_IDX
}

// Device is the device's end of a split virtqueue.
//
// A chain goes through three states. Peek takes it; several may be held, as long as needed. Commit gives it back,
// in any order. Publish shows the driver all that was committed since the last one, by one store, as mergeable
// receive buffers need. Rewind puts the latest peeked back instead, as PutBack does one, and Peek will find them again.
//
// After an error Peek and Load give that error; what was peeked before can still be committed and
// published. Err has it too, also where a method returns none: ring memory may fault under any of
// them. One error stops nothing: a translation miss (dma.ErrMiss). The chain stays where it is,
// available or held, and the same call succeeds once the IOTLB has the entry; until then Pending
// says true, so a worker that sleeps on a miss waits for the entry, not for a kick.
type Device struct {
	size    uint16
	ring    deviceRing
	err     error // sticky
	open    bool
	resumed bool

	held  []bool  // by head: peeked and not committed
	order []taken // the chains taken, in order, by number: what Rewind lets go of

	next   pos           // of the chain to be peeked next
	number uint32        // of that chain: how many were peeked
	known  uint32        // the chains before this number surely are available
	done   uint32        // how many were published: number-done are held or staged
	staged []usedElement // not yet published; cap is the ring's size, see available
}

// taken is a chain that was peeked.
type taken struct {
	at   pos
	head uint16
}

// NewDevice pins the ring's memory and checks its size and alignment. What is used goes on from where ring memory
// says it is, and kicks are asked for: a device that was here before may have left them off, and the first kick is what
// starts a ring. From here on the calling goroutine is guarded (dma.Guard).
func NewDevice(s *dma.Space, c Config) (*Device, error) {
	r, err := pinSplit(s, c)
	if err != nil {
		return nil, err
	}
	return newDevice(s, c, r)
}

// newDevice returns a Device of a ring of any format.
func newDevice(s *dma.Space, c Config, r deviceRing) (*Device, error) {
	q := &Device{size: c.Size, ring: r, open: true}
	q.held = make([]bool, c.Size)
	q.order = make([]taken, 1<<bits.Len16(c.Size-1)) // a power of two, so that a number becomes an index quickly
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

// Repin takes hold of the ring's memory again, after the space changed. If it is no longer there
// the queue keeps the memory that it had, and must be closed; after a translation miss Repin may be
// called again instead.
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

// Close releases the ring's memory. The queue touches it no more.
func (q *Device) Close() {
	q.ring.close()
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
	if ok, err = q.peek(c); err != nil {
		q.stop(err)
	}
	return ok, err
}

// PeekBatch is Peek for up to len(cs) chains, and cheaper. With an error come the n good chains before it.
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

// peekBatch counts by a pointer, because a fault ends it in the middle.
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

// stop makes the error the queue's, if it is no translation miss: what missed may be there the next
// time.
func (q *Device) stop(err error) {
	if !errors.Is(err, dma.ErrMiss) {
		q.err = err
	}
}

// take is Peek without a guard. A chain that is not good stays where it is.
func (q *Device) take(c *Chain) (ok bool, err error) {
	if q.number == q.known {
		if ok, err = q.refresh(); !ok {
			return false, err
		}
	}
	var next pos
	if r, split := q.ring.(*splitDevice); split { // inlined: a call by the interface takes 4 % of a packet's time
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

// refuse empties a chain that is not good, for err or, without one, because it is held already.
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

// chain is where the chain of that number is kept once it was taken.
func (q *Device) chain(number uint32) *taken { return &q.order[int(number)&(len(q.order)-1)] }

func (q *Device) refresh() (some bool, err error) {
	n, err := q.ring.available(q.next, int(q.number-q.done))
	q.known = q.number + uint32(n)
	return n > 0, err
}

// Load walks a chain again that was peeked and not yet committed: the memory map may have changed since, or the caller
// has left the epoch and entered it again.
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

// Rewind makes the last n peeked chains available again; none of them may be committed.
func (q *Device) Rewind(n int) {
	for ; n > 0; n-- {
		last := *q.chain(q.number - 1)
		if !q.holds(last.head) {
			q.misused("rewind past head %d, which is not held", int(last.head))
			return
		}
		q.held[last.head] = false
		q.next = last.at
		q.number--
	}
}

// PutBack makes a peeked chain available again, if none was peeked behind it that was not put back as well. Else it
// returns false, and the chain is still held.
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

// Commit stages the used element of a peeked chain, of which written bytes were written, for Publish.
func (q *Device) Commit(head uint16, written uint32) {
	if !q.holds(head) {
		q.misused("commit of head %d, which is not held", int(head))
		return
	}
	q.held[head] = false
	q.staged = append(q.staged, usedElement(head)|usedElement(written)<<32)
}

// ReturnUnused commits up to n available chains with nothing written, and says how many those were. It reads no
// descriptor: a chain costs the same whatever it is, and a bad one comes back like any other.
func (q *Device) ReturnUnused(n int) (returned int, err error) {
	if q.err != nil {
		return 0, q.err
	}
	if err = q.returnUnused(n, &returned); err != nil {
		q.stop(err)
	}
	return returned, err
}

// returnUnused counts by a pointer, because a fault ends it in the middle.
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

// Publish shows all committed chains to the driver by one store, and tells whether it wants a call.
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

// DisableKick tells the driver that kicks are not needed; one may still come.
func (q *Device) DisableKick() {
	if !q.open {
		return
	}
	defer dma.Recover(&q.err)
	q.ring.disableKick(q.next)
}

// EnableKick asks for a kick at the next chain. more says that there is one already, for which no kick may come: peek
// before sleeping. It says so of a stopped queue, too, so that its error is found.
func (q *Device) EnableKick() (more bool) { return q.EnableKickBeyond(0) }

// EnableKickBeyond is EnableKick for an owner whom n chains did not suffice, and who rewound them:
// it asks for a kick when there are more than n to peek, or at each, as the ring can, and more says
// that there are already.
func (q *Device) EnableKickBeyond(n int) (more bool) {
	if q.err != nil {
		return true
	}
	more = true // should the ring fault
	defer dma.Recover(&q.err)
	more = q.ring.enableKick(q.next, n)
	return more
}

// Pending tells whether Peek would find something; an error is something.
func (q *Device) Pending() (some bool) {
	if q.err != nil || q.number != q.known {
		return true
	}
	some = true // should the ring fault
	defer dma.Recover(&q.err)
	some = q.ring.pending(q.next)
	return some
}

// Available is how many chains Peek would find, if nothing is wrong with them: in a packed ring, at least so many.
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

// Held is how many chains are peeked and not committed.
func (q *Device) Held() int { return int(q.number-q.done) - len(q.staged) }

// Base is where the ring goes on. With nothing held, and all published, it is what GET_VRING_BASE answers.
func (q *Device) Base() Base { return q.ring.base(q.next) }

// Resumed tells whether the ring's base said, when the Device was made, that it goes on from before.
func (q *Device) Resumed() bool { return q.resumed }

// Size is the ring's size.
func (q *Device) Size() uint16 { return q.size }

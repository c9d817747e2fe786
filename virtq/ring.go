package virtq

// pos is a place among the chains that a driver makes available, in the encoding of the ring's format. Only the ring
// knows what comes behind it.
type pos uint32

// deviceRing is the memory of a ring as the device uses it, in one format: how chains are found in
// it, and returned. What is taken, held and staged is the Device's to know. The packed ring will be
// another one.
//
// Any method may fault, under the Device's guard.
type deviceRing interface {
	// repin takes hold of the ring's memory again, and closes the ring if it can.
	repin() (deviceRing, error)
	close()

	// start reads where the used part was left, and tells where the first chain is. resumed says that the ring goes on
	// from before.
	start(b Base) (first pos, resumed bool)
	// base is where the ring goes on if the first chain not consumed is at next.
	base(next pos) Base

	// available tells how many chains can surely be taken from next on, while out are not returned yet; 0 if
	// there is none. It is an error if that cannot be.
	available(next pos, out int) (n int, err error)
	// pending tells if there is a chain at next.
	pending(next pos) bool
	// take reads the chain at p, which is available, and tells where the next one is. Its head is below the
	// ring's size.
	take(p pos, c *Chain) (next pos, err error)
	// head tells the head of the chain at p, which is available, and where the next one is, as take does. It looks at no
	// buffer, and makes no list.
	head(p pos) (next pos, head uint16, err error)
	// load reads a chain again that was taken.
	load(head uint16, c *Chain) error

	// publish returns chains, and tells whether the driver wants a call.
	publish(es []usedElement) (call bool)
	// disableKick tells the driver that no kick is needed.
	disableKick(next pos)
	// enableKick asks for a kick when more than n chains are available from next on, or sooner. more says that they
	// are already.
	enableKick(next pos, n int) (more bool)
}

// usedElement is a chain on its way back: its head in the low half, the bytes written to it in the high one.
type usedElement uint64

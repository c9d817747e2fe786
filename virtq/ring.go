package virtq

// pos is a chain's position among the chains that a driver makes available, in the encoding of the ring's
// format.
type pos uint32

// deviceRing is the memory of a ring in one format, as the device uses it.
//
// A method that touches ring memory may fault; the Device guards the calls.
type deviceRing interface {
	// repin pins the ring's memory again, and returns the ring to use from now on. If that is another one, it has
	// closed this one.
	repin() (deviceRing, error)
	close()

	// start returns the position of the first chain. resumed reports whether b is not the ring's start.
	start(b Base) (first pos, resumed bool)
	// base returns the Base for a ring whose first chain not consumed is at next.
	base(next pos) Base

	// available returns how many chains the Device can take from next on, while it has not yet returned out
	// chains. A count that exceeds the ring is an error.
	available(next pos, out int) (n int, err error)
	// pending reports whether there is a chain at next.
	pending(next pos) bool
	// take reads the chain at p, which must be available, and returns the next position. The chain's head is below
	// the ring's size.
	take(p pos, c *Chain) (next pos, err error)
	// head returns the head of the chain at p, which must be available, without reading a descriptor.
	head(p pos) (next pos, head uint16, err error)
	// load reads a chain again that the Device has taken.
	load(head uint16, c *Chain) error

	// publish returns chains, and reports whether the driver wants a call.
	publish(es []usedElement) (call bool)
	disableKick(next pos)
	// enableKick asks the driver for a kick when more than n chains are available from next on, or sooner. It
	// returns true if more than n are available already.
	enableKick(next pos, n int) (more bool)
}

// usedElement is a chain to return: its head in the low half, the number of bytes written to it in the high
// half.
type usedElement uint64

package virtq

// pos is a chain's position, in the encoding of the ring's format.
type pos uint32

// deviceRing is the memory of a ring in one format, as the device uses it.
//
// A method that touches ring memory may panic with a memory fault, for dma.Recover.
type deviceRing interface {
	// repin pins the ring's memory again. If it returns another ring, it has closed this one.
	repin() (deviceRing, error)
	close()

	// start readies the ring to go on at b, and returns the position of the chain there. resumed is false if b is
	// the ring's start.
	start(b Base) (first pos, resumed bool)
	// base returns the Base for a ring whose next chain to take is at next.
	base(next pos) Base

	// available returns how many chains from next on the Device can take, or at least one of them if there are any.
	// out chains are taken and not yet published. If both together exceed the ring, that may be an error.
	available(next pos, out int) (n int, err error)
	// pending reports whether available would find a chain at next, or an error.
	pending(next pos) bool
	// take reads the chain at p, which must be available. Without an error c.Head is below the ring's size.
	take(p pos, c *Chain) (next pos, err error)
	// head returns the head of the chain at p, which must be available, without reading a descriptor.
	head(p pos) (next pos, head uint16, err error)
	// load reads a chain again that the Device has taken.
	load(head uint16, c *Chain) error

	// publish gives chains back to the driver, and reports whether the driver wants a call.
	publish(es []usedElement) (call bool)
	disableKick(next pos)
	// enableKick asks the driver for a kick when more than n chains are available from next on, or sooner. It
	// returns true if more than n are available already.
	enableKick(next pos, n int) (more bool)
}

// usedElement is a chain to return: its head in the low half, the written bytes in the high half.
type usedElement uint64

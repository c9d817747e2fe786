// Package virtq implements split virtqueues (virtio 1.3, 2.7) from both ends.
//
// A Device takes the chains that a driver made available and returns them used; a Driver makes
// chains available and takes them back. The peer may rewrite ring memory at any moment: the package
// reads each value once, checks it, and then uses it. If Peek or Load finds a chain that breaks the
// rules, it returns ErrBadChain, and the queue stops for good; the package touches nothing outside
// the guest's regions. A chain in memory that the device cannot reach breaks no rule: a guest may
// have memory that is not shared with the device, and its drivers cannot know. Peek returns such a
// chain without buffers (Chain.Fault), and the queue goes on. If a device breaks the rules, the
// Driver returns ErrBadUsed.
//
// One goroutine at a time uses a queue; there are no locks. The owner of a Device closes it, the
// owner of a Driver owns its memory. The package depends on no device type and no transport:
// whether a kick or a call is wanted is a result, which the caller turns into eventfd writes,
// register writes or messages.
//
// Ring memory of a Device is memory of a dma.Space, and may fault when the peer truncates the file
// behind it: dma.Go must have started each goroutine that uses a Device, or the goroutine must have
// entered the space, which guards it as well. A fault becomes the queue's error, like a bad chain.
//
// The cost of a chain is bounded, whatever the driver writes. A chain, and an indirect table, has
// at most MaxDescriptors descriptors (also in a ring smaller than that), and the buffers of a chain
// lie in at most MaxSegments segments; a longer one is ErrBadChain. So Peek and Load read at most
// MaxDescriptors+2 descriptors, copy a table of at most 16 KiB, and make lists of at most
// MaxSegments segments (96 KiB, grown step by step): some 40 us of a processor, where an ordinary
// packet takes 20 ns. A Chain whose lists have grown beyond the need of packets frees them after it
// has held a chain that did not need them, or when its owner calls Trim. ReturnUnused returns
// chains without reading their descriptors: 8 ns for each.
//
// The packed ring (2.8) is not implemented yet. A Device uses no ring index: only its deviceRing
// interprets where chains are, how many there are and what a Base means. The split ring is the only
// implementation.
//
// The package is API (README, Stability).
package virtq

import "errors"

var (
	// ErrBadChain means that the driver made a chain available that breaks the rules. It is sticky:
	// the queue returns it from then on.
	ErrBadChain = errors.New("bad descriptor chain")
	// ErrBadRing means that a ring cannot have the addresses, the size, the memory or the base that it
	// was given.
	ErrBadRing = errors.New("bad ring")
	// ErrMisuse means that the owner of a queue committed, loaded or rewound a chain that it does
	// not hold, or used a closed queue. It is sticky too; it is a bug of the owner, never the
	// peer's fault.
	ErrMisuse = errors.New("queue misused by its owner")
	// ErrBadUsed means that the device returned more chains than were in flight, returned one that was
	// not, or reported more bytes than the chain's writable buffers have. It is sticky.
	ErrBadUsed = errors.New("bad used element")
	// ErrFull means that a chain needs more descriptors than are free: the driver has to poll, and
	// then add the chain again.
	ErrFull = errors.New("ring full")
	// ErrBadBuf means that a chain can never be added: it is empty, has more descriptors than the
	// ring or than MaxDescriptors, or 4 GiB or more.
	ErrBadBuf = errors.New("bad buffer")
)

// MaxSize is the largest split ring (virtio 1.3, 2.7).
const MaxSize = 1 << 15

const (
	// MaxDescriptors is how many descriptors a chain may have. The specification limits a chain only
	// by the ring's size (2.7.5.3.1), but drivers use no more than this: QEMU's rings have at most
	// 1024 descriptors (VIRTQUEUE_MAX_SIZE), Linux's vhost takes as many buffers (UIO_MAXIOV), and
	// Linux's virtio_net sends at most MAX_SKB_FRAGS + 2: 17 fragments, or up to 45 by the kernel's
	// configuration, virtio_net_hdr and the linear part.
	MaxDescriptors = 1024
	// MaxSegments is how many segments the buffers of a chain may lie in. A buffer has a segment for
	// each region that it crosses, and the frontend decides how many regions there are. (Linux's vhost
	// takes UIO_MAXIOV, 1024, of these as well.)
	MaxSegments = 4 * MaxDescriptors
)

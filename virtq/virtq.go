// Package virtq implements split virtqueues (virtio 1.3, 2.7) from both ends.
//
// A Device takes the chains that a driver made available and returns them used; a Driver does the reverse.
// The peer may rewrite ring memory at any moment: each value is read once, checked, then used. A chain that
// breaks the rules gives ErrBadChain and stops its queue for good; nothing outside the guest's regions is
// touched. A chain whose memory the device cannot reach breaks none: a guest may have memory that nobody shares, and
// drivers do not know. It comes without buffers (Chain.Fault), and the queue goes on. A device that breaks the rules
// gives the driver ErrBadUsed.
//
// One goroutine at a time uses a queue; there are no locks. The owner of a Device closes it, the owner of a
// Driver owns its memory. The package knows no device type and no transport: kicks and calls are results,
// which the caller turns into eventfd writes, register writes or messages.
//
// Ring memory of a Device is memory of a dma.Space, and may fault when the peer truncates the file
// behind it: goroutines that use a Device must have been started by dma.Go, or have entered the
// space, which guards them as well. A fault is the queue's error, like a bad chain.
//
// What a chain costs is bounded, whatever the driver writes. A chain has at most MaxDescriptors
// descriptors, an indirect table no more either (nor less, in a small ring), and its buffers lie in at
// most MaxSegments segments; a longer one is ErrBadChain. So Peek and Load read at most MaxDescriptors descriptors
// and one, copy a table of at most 16 KiB, and make lists of at most MaxSegments segments (96 KiB,
// grown step by step): some 40 us of a processor, where an ordinary packet takes 20 ns. A Chain
// whose lists have grown beyond what packets need drops them once it has held a chain that did not
// need them, or when its owner says so by Trim. ReturnUnused gives chains back without reading
// their descriptors: 8 ns each, whatever they are.
//
// It does not know the packed ring (2.8) yet. A Device knows no index of its ring: where chains are, how
// many there are and what a Base means is said by a deviceRing alone, of which the split ring's is the
// only one.
//
// The package is API (README, Stability).
package virtq

import "errors"

var (
	// ErrBadChain says that the driver made something available that breaks the rules. It is sticky: the
	// queue gives it from then on.
	ErrBadChain = errors.New("bad descriptor chain")
	// ErrBadRing says that a ring cannot be where, or of the size that, the driver says.
	ErrBadRing = errors.New("bad ring")
	// ErrMisuse says that the owner of a queue committed, loaded or rewound a chain that it does not hold. It is
	// sticky too: a fault of ours, never of the peer.
	ErrMisuse = errors.New("queue misused by its owner")
	// ErrBadUsed says that the device returned something that the driver did not give it. It is sticky.
	ErrBadUsed = errors.New("bad used element")
	// ErrFull says that a chain needs more descriptors than are free: poll, then add again.
	ErrFull = errors.New("ring full")
	// ErrBadBuf says that a chain cannot be added now or later: empty, longer than the ring, or
	// than MaxDescriptors.
	ErrBadBuf = errors.New("bad buffer")
)

// MaxSize is the largest split ring (virtio 1.3, 2.7).
const MaxSize = 1 << 15

const (
	// MaxDescriptors is how many descriptors a chain may have. The specification sets no other
	// limit than the ring's size (2.7.5.3.1), but no driver can use more: QEMU's rings have at most
	// 1024 descriptors (VIRTQUEUE_MAX_SIZE), Linux's vhost takes as many buffers (UIO_MAXIOV), and
	// Linux's virtio_net sends MAX_SKB_FRAGS + 2 at most: 17 fragments, or up to 45 as the kernel
	// is built, virtio_net_hdr and the linear part.
	MaxDescriptors = 1024
	// MaxSegments is how many segments the buffers of a chain may lie in. A buffer has one for each
	// region that it crosses, and the frontend decides how many regions there are. (Linux's vhost
	// takes UIO_MAXIOV, 1024, of these as well.)
	MaxSegments = 4 * MaxDescriptors
)

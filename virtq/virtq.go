// Package virtq implements split virtqueues (virtio 1.3, 2.7) from both ends.
//
// The peer may rewrite ring memory at any moment: the package copies a value by one read, checks the copy, and uses
// only that. A chain or avail.idx that breaks the rules stops a Device's queue for good once a call reads it, with
// ErrBadChain; a used element or used.idx that breaks them stops a Driver's, with ErrBadUsed. A chain with memory that
// the device cannot reach breaks no rule: Peek returns it without buffers (Chain.Fault), except at a translation
// miss (Device).
//
// One goroutine at a time uses a queue; there are no locks. The owner of a Device closes it, the owner of a
// Driver owns its memory. Publish reports whether the peer wants a kick or a call, which the caller has to send.
//
// Ring memory of a Device is memory of a dma.Space, and may fault when the peer truncates the file behind it:
// dma.Go must have started each goroutine that uses a Device, or the goroutine must have called dma.Guard, as NewDevice
// does, or entered the space. A fault becomes the queue's error.
//
// A chain, and an indirect table, has at most MaxDescriptors descriptors, and the buffers of a chain lie in at
// most MaxSegments segments; a longer one is ErrBadChain. So Peek and Load copy at most one table, of
// up to 16 KiB, and decode at most MaxDescriptors+2 descriptors of ring and table.
//
// The packed ring (2.8) is not implemented yet.
//
// The package is API (README, Stability).
package virtq

import "errors"

var (
	// ErrBadChain means that a chain of the driver, or its avail.idx, breaks the rules. It is sticky: the queue
	// returns it from then on.
	ErrBadChain = errors.New("bad descriptor chain")
	// ErrBadRing means that a ring cannot have the addresses, the size, the memory or the base given.
	ErrBadRing = errors.New("bad ring")
	// ErrMisuse means that the owner of a Device named or rewound a chain that it does not hold, or used the Device
	// after Close. It is sticky.
	ErrMisuse = errors.New("queue misused by its owner")
	// ErrBadUsed means that the used ring is invalid. It is sticky.
	ErrBadUsed = errors.New("bad used element")
	// ErrFull means that a chain needs more descriptors than are free.
	ErrFull = errors.New("ring full")
	// ErrBadBuf means that a chain can never be added: it has no buffers, more buffers than the ring has
	// descriptors or than MaxDescriptors, or 4 GiB or more.
	ErrBadBuf = errors.New("bad buffer")
)

// MaxSize is the largest split ring (virtio 1.3, 2.7).
const MaxSize = 1 << 15

const (
	// MaxDescriptors is how many descriptors a chain may have: as many as QEMU's largest rings
	// (VIRTQUEUE_MAX_SIZE), and as Linux's vhost takes (UIO_MAXIOV). The specification limits the number only by
	// the ring's size (2.7.5.3.1).
	MaxDescriptors = 1024
	// MaxSegments is how many segments the buffers of a chain may lie in.
	MaxSegments = 4 * MaxDescriptors
)

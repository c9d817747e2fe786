package driver

import "errors"

// memory is DMA memory: the same bytes for us and, at addr, for the device. Page aligned, zero at first, there until
// the transport is closed.
type memory struct {
	b    []byte
	addr uint64 // IOVA
}

// cut is the part [off, off+n).
func (m memory) cut(off, n int) memory {
	return memory{b: m.b[off : off+n : off+n], addr: m.addr + uint64(off)}
}

// ringAddrs is what a device must know of a ring.
type ringAddrs struct {
	size              uint16
	desc, avail, used uint64 // IOVAs
}

// transport is a way to a virtio-net device: PCI or vhost-user. Queues are counted as in virtio: receive queue i is
// 2i, transmit queue i is 2i+1. Methods are called by one goroutine at a time, but for kick (anyone) and the
// sleeper's wake.
type transport interface {
	// negotiate settles the features: what is offered of those wanted, checked by chooseFeatures.
	negotiate() (features uint64, err error)
	// config reads the device's configuration space (virtio 1.3, 5.1.4); errNoConfig if there is none.
	config(off int, b []byte) error
	// pairs is how many queue pairs the device has. controlQueue tells whether they must be enabled by
	// VIRTIO_NET_CTRL_MQ_VQ_PAIRS_SET, and where: -1 if start does it.
	pairs() int
	controlQueue() int
	// alloc gives DMA memory; n is at most maxAlloc.
	alloc(n int) (memory, error)
	// ringSize is the largest size of queue q's ring that is not above want; 0: there is no such queue.
	ringSize(q int, want uint16) uint16
	setupQueue(q int, r ringAddrs) error
	start() error // all queues that were set up go
	// stopQueue ends the device's use of queue q: when it returns nil, no buffer is touched any more. setupQueue and
	// startQueue make it go again. errNoReset if the transport cannot do that (then featRingReset is not negotiated).
	stopQueue(q int) error
	startQueue(q int) error
	kick(q int)
	// emulated says that QEMU may be emulating this processor (virtq.DriverConfig).
	emulated() bool
	// arm makes the next call (interrupt) of the device end a sleep. It comes before the rings are looked at for the
	// last time, as it may swallow one that was made earlier. changed: the configuration space may have changed.
	arm() (changed bool, err error)
	sleeper() *sleeper
	// watch has gone called, by another goroutine, if the device goes away, not after halt; and gpuGone with the PCI
	// addresses of devices that do, which may be GPUs.
	watch(gone func(error), gpuGone func(addr string)) error
	lost() error  // the device has been found to be gone: why it is of no use
	halt() error  // the device does nothing from now on; may be called again
	close() error // halt, and give back all memory and descriptors
}

var errNoReset = errors.New("the queue cannot be reset")

// maxAlloc is the most DMA memory that is contiguous: a huge page.
const maxAlloc = 2 << 20

// slab makes n pieces of size bytes each (a power of two), from as few allocations as it takes.
func slab(t transport, n, size int) ([]memory, error) {
	const block = 512 << 10
	var s []memory
	for n > len(s) {
		k := min(n-len(s), max(1, block/size))
		m, err := t.alloc(k * size)
		if err != nil {
			return nil, err
		}
		for i := range k {
			s = append(s, m.cut(i*size, size))
		}
	}
	return s, nil
}

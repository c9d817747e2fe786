package driver

import (
	"errors"
)

// memory is memory that the driver and the device share. alloc returns it page aligned and zero; parts of it (cut,
// slab) need not be aligned. The transport's close frees it; a PCI device's does not, if the device may still write
// to it.
type memory struct {
	b    []byte
	addr uint64 // IOVA
}

func (m memory) cut(off, n int) memory {
	return memory{b: m.b[off : off+n : off+n], addr: m.addr + uint64(off)}
}

type ringAddrs struct {
	size              uint16
	desc, avail, used uint64 // IOVAs
}

// transport is the access to a virtio-net device: PCI or vhost-user. Queues are numbered as in virtio: receive queue
// i is 2i, transmit queue i is 2i+1. While the polling goroutine runs, it calls arm, config, lost, the sleeper's
// sleep and rest and, after a failure, halt; another goroutine may call alloc, watch and, under NIC.tmu, setupQueue,
// stopQueue, startQueue. Any goroutine may call kick and the sleeper's wake.
type transport interface {
	negotiate() (features uint64, err error)
	// config reads len(b) bytes at off of the device's configuration space (virtio 1.3, 5.1.4). It returns errNoConfig
	// if the transport has no access to it.
	config(off int, b []byte) error
	// pairs returns the number of queue pairs; it counts only if config returns errNoConfig. controlQueue returns the
	// control queue on which VIRTIO_NET_CTRL_MQ_VQ_PAIRS_SET must enable them, if VIRTIO_NET_F_CTRL_VQ was negotiated;
	// -1: none.
	pairs() int
	controlQueue() int
	// alloc allocates n bytes of DMA memory, rounded up to whole pages; PCI: at most 2 MiB.
	alloc(n int) (memory, error)
	// ringSize returns the size of queue q's ring, at most want; 0: there is no such queue, or the device is gone.
	ringSize(q int, want uint16) uint16
	setupQueue(q int, r ringAddrs) error
	start() error
	// After stopQueue returns nil, the device uses no buffer of queue q; setupQueue and startQueue start it
	// again. errNoReset: the transport cannot stop a single queue.
	stopQueue(q int) error
	startQueue(q int) error
	kick(q int)
	// emulated reports whether QEMU may be emulating this processor (virtq.DriverConfig).
	emulated() bool
	// arm makes the next call (interrupt) of the device end a sleep. It may discard an earlier call: poll the rings
	// afterwards. changed reports whether the configuration space may have changed.
	arm() (changed bool, err error)
	sleeper() *sleeper
	// watch makes another goroutine call gone if the device is removed or the backend hangs up and, with PCI, gpuGone
	// with the name of each other device that the kernel removes: for a PCI device, its address. PCI does neither if it
	// cannot hear the kernel's events. After close no call comes.
	watch(gone func(error), gpuGone func(addr string)) error
	lost() error // marks a device that was found to be gone, and returns the error for that
	halt() error
	close() error // halts the device, and frees descriptors and memory (with exceptions, see memory)
}

var errNoReset = errors.New("the queue cannot be reset")

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

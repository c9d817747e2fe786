package driver

import (
	"errors"
)

// What alloc returns is page aligned and zero at first; pieces of it (cut, slab) need not be aligned. The
// transport's close frees it; a PCI device's does not, if the device may still write to it.
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

// transport is the access to a virtio-net device: PCI or vhost-user. Queues are numbered as in virtio:
// receive queue i is 2i, transmit queue i is 2i+1. After open, the polling goroutine calls arm, config, lost, the
// sleeper's sleep and, after a failure, halt; meanwhile another goroutine may call alloc, watch and, under NIC.tmu,
// setupQueue, stopQueue, startQueue. Any goroutine may call kick and the sleeper's wake.
type transport interface {
	negotiate() (features uint64, err error)
	// config reads the device's configuration space (virtio 1.3, 5.1.4), or returns errNoConfig.
	config(off int, b []byte) error
	// pairs is the number of queue pairs, if the configuration space cannot be read. controlQueue is the control
	// queue on which VIRTIO_NET_CTRL_MQ_VQ_PAIRS_SET must enable them; -1: none.
	pairs() int
	controlQueue() int
	// alloc allocates n bytes of DMA memory; PCI: at most 2 MiB.
	alloc(n int) (memory, error)
	// ringSize returns the size of queue q's ring, at most want; 0: there is no such queue.
	ringSize(q int, want uint16) uint16
	setupQueue(q int, r ringAddrs) error
	start() error
	// After stopQueue returns nil, the device uses no buffer of queue q; setupQueue and startQueue start it
	// again. errNoReset: the transport cannot stop a single queue.
	stopQueue(q int) error
	startQueue(q int) error
	kick(q int)
	// emulated: QEMU may be emulating this processor (virtq.DriverConfig).
	emulated() bool
	// arm makes the next call (interrupt) of the device end a sleep. It may discard an earlier call: poll the
	// rings afterwards. changed: the configuration space may have changed.
	arm() (changed bool, err error)
	sleeper() *sleeper
	// watch makes another goroutine call gone if the device is removed, and gpuGone with the PCI addresses of
	// other removed devices. After close no call comes.
	watch(gone func(error), gpuGone func(addr string)) error
	lost() error // of a device that was found to be gone
	halt() error
	close() error // halts the device, and frees descriptors and memory (see memory)
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

package gve

import (
	"errors"
	"sync/atomic"
	"time"

	"vnic.dev/vnic/dma"
)

// shared is the part of a device that its queues use.
type shared struct {
	space    *dma.Space
	notify   *vectors
	patience time.Duration // how long a transmitted frame waits for a busy receiver; 0: limits.Patience
	// failed is called when a queue has stopped on an error. Its caller holds no lock of the queue; failed must not
	// wait.
	failed func(tx bool, id int, err error)
	// clock returns the time for receive timestamps, in nanoseconds; nil: frames get no timestamps.
	clock func() int64
	// device is called at most once after each start of a receive queue, at the first doorbell write that shows posted
	// buffers. Its second argument, running, is true if the first of them lies in GPU memory. nil: not called.
	device func(queue int, running bool)
}

// ringParams describe a queue's rings, from CREATE_TX_QUEUE and CREATE_RX_QUEUE (docs/specs/gve.md,
// 3.4).
type ringParams struct {
	desc, compl uint64 // IOVA of the ring of descriptors or buffers, and of the completion ring
	size        int    // descriptors or buffers
	complSize   int    // completions
	notify      int    // MSI-X vector of the notification block
}

type rxParams struct {
	ringParams
	bufSize    int // bytes of a packet buffer
	headerSize int // bytes of a header buffer; 0: no header split
	rsc        bool
}

// Some of the errors that stop a queue. A fault in the guest's memory file (dma.ErrFault) does so, too.
var (
	errUnmapped = errors.New("the ring's memory was taken away")
	errBadDesc  = errors.New("bad descriptor")
)

type counter struct{ v atomic.Uint64 }

func (c *counter) add(n uint64) { c.v.Store(c.v.Load() + n) }
func (c *counter) get() uint64  { return c.v.Load() }

package gve

import (
	"errors"
	"sync/atomic"
	"time"

	"vnic.dev/vnic/dma"
)

// shared is what the queues of a device have of it. It does not change once they exist.
type shared struct {
	space    *dma.Space
	notify   *vectors      // their interrupts
	patience time.Duration // how long a frame waits for a busy receiver; 0: limits.Patience
	// failed is told that a queue has stopped for good, and why, until it is started again. It is called on any goroutine,
	// without locks, and does not wait.
	failed func(tx bool, id int, err error)
	// clock says when a batch of frames has come, in nanoseconds; nil: completions have no timestamps. Set before Serve.
	clock func() int64
	// device is told whether a receive queue's first buffer lies in GPU memory, on the control goroutine.
	device func(queue int, is bool)
}

// ringParams are the rings of a queue, as CREATE_TX_QUEUE and CREATE_RX_QUEUE tell of them (docs/specs/gve.md, 3.4).
type ringParams struct {
	desc, compl uint64 // IOVA of the ring of descriptors, or buffers, and of the completion ring
	size        int    // descriptors in the one
	complSize   int    // and in the other
	notify      int    // notification block, which is the MSI-X vector
}

// rxParams say what CREATE_RX_QUEUE said.
type rxParams struct {
	ringParams
	bufSize    int  // bytes of a packet buffer
	headerSize int  // bytes of a header buffer; 0: no header split
	rsc        bool // may coalesce
}

// Errors that stop a queue.
var (
	errUnmapped = errors.New("the ring's memory was taken away")
	errBadDesc  = errors.New("bad descriptor")
)

// counter has one writer at a time.
type counter struct{ v atomic.Uint64 }

func (c *counter) add(n uint64) { c.v.Store(c.v.Load() + n) }
func (c *counter) get() uint64  { return c.v.Load() }

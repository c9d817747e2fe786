package gve

import (
	"errors"
	"sync/atomic"
	"time"

	"vnic.dev/vnic/dma"
)

// shared is the part of a device that its queues use. It does not change after New.
type shared struct {
	space    *dma.Space
	notify   *vectors      // vectors for the interrupts of the queues
	patience time.Duration // how long a frame waits for a busy receiver; 0: limits.Patience
	// A queue calls failed when it has stopped on an error; the queue stays stopped until the
	// driver starts it again. The call may come on any goroutine, without locks of the queue, and
	// failed must not wait.
	failed func(tx bool, id int, err error)
	// clock returns the time in nanoseconds, for timestamps of received batches; nil: no timestamps.
	// New sets it.
	clock func() int64
	// A receive queue calls device on the control goroutine, when the driver posts the queue's first
	// buffers: running is set if the first one lies in GPU memory.
	device func(queue int, running bool)
}

// ringParams describe a queue's rings, from CREATE_TX_QUEUE and CREATE_RX_QUEUE (docs/specs/gve.md,
// 3.4).
type ringParams struct {
	desc, compl uint64 // IOVA of the ring of descriptors or buffers, and of the completion ring
	size        int    // descriptors in the first ring
	complSize   int    // completions in the second ring
	notify      int    // notification block, which selects the MSI-X vector
}

// rxParams are the parameters of CREATE_RX_QUEUE.
type rxParams struct {
	ringParams
	bufSize    int  // bytes of a packet buffer
	headerSize int  // bytes of a header buffer; 0: no header split
	rsc        bool // the driver accepts GSO packets
}

// Errors that stop a queue.
var (
	errUnmapped = errors.New("the ring's memory was taken away")
	errBadDesc  = errors.New("bad descriptor")
)

// counter is a counter with one writer at a time.
type counter struct{ v atomic.Uint64 }

func (c *counter) add(n uint64) { c.v.Store(c.v.Load() + n) }
func (c *counter) get() uint64  { return c.v.Load() }

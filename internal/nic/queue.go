package nic

import (
	"vnic.dev/vnic/internal/wire"
)

// RxQueue is a receive queue, as a device model passes it to its Port. The Port calls Put, Flush, Admit and Delivered
// between Lock and Unlock, inside the epoch of its address space (dma.Space.Enter). Under the lock a queue must not
// wait or log.
type RxQueue interface {
	wire.Waitable
	Lock()
	Unlock()
	// Put writes one frame to the queue's buffers, by m. The driver gets it completely or not at all.
	Put(m *Mover, f *Frame) Result
	// Flush shows the driver the buffers filled or returned since Lock, and reports whether to interrupt the driver.
	Flush() (call bool)
	// Admit (RxBase) reports whether the Port may put packets of a sending port now.
	Admit(port uint32) bool
	// Delivered (RxBase) gets packets of one sending port when they have their verdicts, and counts packets that the
	// queue took. It is called before Flush.
	Delivered(batch []*wire.Packet)
	// Call interrupts the driver. It is called without the lock.
	Call()
}

// Returner is an RxQueue whose driver cannot take buffers back itself. Return returns up to n posted buffers to
// the driver, unused. It is called under the lock, inside the epoch, and Flush follows. The time that it takes for
// a buffer must not depend on how the driver laid the buffer out.
type Returner interface {
	Return(n int) (returned int)
}

// Frame is a frame for a receive queue to write.
type Frame struct {
	*wire.Packet
	// Split: the queue writes the first HeaderLen bytes to a header buffer and the other bytes to payload buffers,
	// unless its header buffers are too short (gve). Without Split, headers and payload go to the same buffers.
	Split bool
	// HeaderLen is the length of a TCP packet's headers, or of a whole packet of another kind, if Split; else 0.
	HeaderLen uint32
	Unsplit   bool // the flow's queue has header split on, but the frame cannot be split
	// Merged: the Port made this GSO packet of several frames, and puts them one by one after a refusal, which the
	// queue must not count or remember.
	Merged bool
	Hashed bool   // Hash is valid
	Hash   uint32 // RSS hash of the 4-tuple, or of the addresses
}

// Result is the result of Put.
type Result uint8

// Results of Put.
const (
	PutTaken Result = iota
	PutNoBuffer
	PutDisabled // receive is not enabled, or not started
	PutStopped  // no ring, or stopped by an error of the driver or its memory
	PutTooBig   // too long for the buffers that it may take, or for the queue; or GSO that a gve queue does not take
	PutUnsplit  // the frame is to be split, but the buffers do not allow it
	PutFault    // the sender's memory went away, or a receive buffer cannot be used
)

var reasons = [...]wire.DropReason{
	PutDisabled: wire.DropDisabled,
	PutStopped:  wire.DropStopped,
	PutTooBig:   wire.DropTooBig,
	PutUnsplit:  wire.DropUnsplit,
	PutFault:    wire.DropFault,
}

// verdict fills in v for a packet with this result of queue q. It sets the fields one by one: a copy of a Verdict just
// written by narrow stores would stall on store forwarding.
func (r Result) verdict(v *wire.Verdict, q wire.Waitable) {
	v.Until = 0
	v.Reason = wire.DropNone
	v.Queue = q
	switch r {
	case PutTaken:
		v.Kind = wire.Taken
	case PutNoBuffer:
		v.Kind = wire.Busy
	default:
		v.Kind, v.Reason, v.Queue = wire.Dropped, reasons[r], nil
	}
}

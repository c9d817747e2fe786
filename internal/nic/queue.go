package nic

import (
	"vnic.dev/vnic/internal/wire"
)

// RxQueue is a receive queue, as a device model gives it to its Port. The Port calls Put and Flush
// between Lock and Unlock, inside the epoch of the port's address space; under the lock a queue
// neither waits, logs nor calls out.
type RxQueue interface {
	wire.Waitable
	Lock()
	Unlock()
	// Put writes one frame to the queue's buffers: all of it or nothing. Bytes move by m only.
	Put(m *Mover, f *Frame) Result
	// Flush publishes what was put since Lock, and says whether the driver wants a call.
	Flush() (call bool)
	// Admit is RxBase's: whether packets of a port may be put now, which are Busy else.
	Admit(port uint32) bool
	// Delivered is RxBase's: what became of packets of one port, of which Put was asked, or none of them was put. It
	// comes before Flush, if it comes.
	Delivered(batch []*wire.Packet)
	// Call calls the driver. It is called without the lock.
	Call()
}

// Returner is an RxQueue whose driver cannot stop it and so cannot take buffers back by itself.
// Return gives back up to n posted buffers, unused, and says how many. What a buffer costs does not
// depend on what the driver made of it. Return is called under the lock, inside the epoch, and
// followed by Flush.
type Returner interface {
	Return(n int) (returned int)
}

// Frame is what a receive queue is to write.
type Frame struct {
	*wire.Packet
	// Split says that Header[:HeaderLen] goes to a header buffer and the rest to payload buffers.
	// Without it the frame is one run of bytes.
	Split bool
	// HeaderLen is how many bytes of the frame go to the header buffer. It is len(Header), or all
	// of a frame that has no payload worth splitting (ARP, SYN, UDP; splitter.Headers.SplitLen).
	HeaderLen uint32
	Unsplit   bool // the queue is split, and the frame cannot be
	// Merged says that the Port has made the frame of several (coalesce.go): it is a GSO packet that
	// nobody sent. If it is not taken they come one by one, so a queue counts nothing then, and
	// neither remembers it nor gives back buffers for it.
	Merged bool
	Hashed bool   // Hash is valid (Config.Hash)
	Hash   uint32 // RSS hash: of the 4-tuple, or of the 2-tuple of what has no ports
}

// Result is what Put did.
type Result uint8

// Results of Put. After PutNoBuffer, and only then, a sender may wait for the queue.
const (
	PutTaken    Result = iota
	PutNoBuffer        // not enough buffers posted
	PutDisabled        // not enabled, or not started: no receive
	PutStopped         // stopped by an error of the driver or its memory
	PutTooBig          // longer than the queue's buffers could ever hold
	PutUnsplit         // to be split, and the buffers do not allow it
	PutFault           // the sender's memory went away; nothing was published
)

var reasons = [...]wire.DropReason{
	PutDisabled: wire.DropDisabled,
	PutStopped:  wire.DropStopped,
	PutTooBig:   wire.DropTooBig,
	PutUnsplit:  wire.DropUnsplit,
	PutFault:    wire.DropFault,
}

// verdict gives a packet the verdict of queue q. It sets its fields one by one: a processor waits for narrow writes to
// be done before it reads them at once, to copy a whole Verdict.
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

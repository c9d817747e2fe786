package driver

import (
	"time"

	"vnic.dev/vnic/splitter"
)

// PageSize is the size of the pages that a PageSource gives, in bytes.
const PageSize = 4096

// Range is a piece of a GPU's memory.
type Range struct {
	GPU int
	Off uint64
	Len uint32
}

// RxFrame is a received frame. All of it is valid until the callback returns: Header lies in memory that the device
// can write again, and that it could change at any time if it is malicious.
type RxFrame struct {
	Queue      int
	Header     []byte  // all headers if Split, else the whole frame
	Split      bool    // from a bound queue
	Payload    []Range // in order, each within one page, from the page's start; the pages are the Receiver's now
	PayloadLen int     // sum of Payload
	CsumGood   bool    // the device vouches for the layer 4 checksum, which may be left incomplete in the frame
	GSOType    splitter.GSOType
	GSOSize    uint16
}

// TxFrame is a frame to send: Header, then Linear, then the Device ranges. Header and Linear are copied before
// Transmit returns; the memory of Device is to stay as it is until the cookie comes back.
type TxFrame struct {
	Header     []byte
	Linear     []byte
	Device     []Range
	NeedsCsum  bool // the field at CsumStart+CsumOffset holds the pseudo-header's sum, the device does the rest
	CsumStart  uint16
	CsumOffset uint16
	GSOType    splitter.GSOType
	GSOSize    uint16
	Cookie     uint64 // given back by Completed; 0 is not
}

// PageSource gives a bound queue the GPU pages that payload goes to, as offsets in the GPU. It is called from the
// polling goroutine, and from UnbindQueue and Close. It may keep neither slice and must not call the NIC.
type PageSource interface {
	TakePages(queue int, dst []uint64) int
	ReturnPages(queue int, offs []uint64)
}

// Receiver gets what the NIC has, on the polling goroutine, without a lock held. Nothing may be kept after a method
// returns. It may call Transmit and Refill, but not BindQueue, UnbindQueue, Close or a method of Control.
type Receiver interface {
	Receive(frames []RxFrame)
	Completed(queue int, cookies []uint64)
	// Wake says that something else has changed: the NIC has stopped (see Err), its link, its generation, or a
	// queue was set up again.
	Wake()
}

// GPUInfo is a GPU whose memory the device can reach.
type GPUInfo struct {
	ID   int    // Range.GPU
	Addr uint64 // as the device sees it: of the BAR, in a guest
	Size uint64
	PCI  string // address of its PCI device, if it is one
}

// Stats counts what a NIC did. It is a snapshot, not taken at one instant.
type Stats struct {
	Busy   time.Duration // polling, with something to do
	Spin   time.Duration // polling, with nothing to do
	Asleep time.Duration
	Sleeps uint64
	Wakes  uint64 // by ourselves (Refill and the like); the other sleeps were ended by the device
	Rounds uint64 // polls of all queues

	Rx []QueueStats // by queue
	Tx []QueueStats
}

// QueueStats counts a queue's work.
type QueueStats struct {
	Frames  uint64
	Bytes   uint64 // of frames, payload included
	Payload uint64 // bytes in GPU memory
	Kicks   uint64
	Full    uint64 // transmit: times that the ring was full. Receive: times that a bound queue had no page to post
	Unsplit uint64 // frames dropped as they were not split on a bound queue
	Dropped uint64 // frames dropped for other reasons: there is no Receiver yet, or it is short
	Control uint64 // frames of the control channel
}

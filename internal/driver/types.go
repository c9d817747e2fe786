package driver

import (
	"time"

	"vnic.dev/vnic/splitter"
)

// PageSize is the size of the pages of a PageSource, in bytes.
const PageSize = 4096

// Range is a piece of a GPU's memory.
type Range struct {
	GPU int
	Off uint64
	Len uint32
}

// RxFrame is a received frame, valid until Receiver.Receive returns. Header may be in memory that the device
// can change at any time.
type RxFrame struct {
	Queue      int
	Header     []byte  // all headers if Split, else the whole frame
	Split      bool    // it came to a bound queue
	Payload    []Range // in order, each within one page, from the page's start; the Receiver owns the pages
	PayloadLen int     // sum of Payload
	CsumGood   bool    // by the device's word; in the frame the layer 4 checksum may be incomplete
	GSOType    splitter.GSOType
	GSOSize    uint16
}

// TxFrame is a frame to send: Header, then Linear, then the Device ranges. [NIC.Transmit] copies Header and
// Linear; the memory of Device must not change until Completed returns the cookie.
type TxFrame struct {
	Header     []byte
	Linear     []byte
	Device     []Range
	NeedsCsum  bool // the field at CsumStart+CsumOffset has the pseudo-header's sum
	CsumStart  uint16
	CsumOffset uint16
	GSOType    splitter.GSOType
	GSOSize    uint16
	Cookie     uint64 // returned by Completed; 0: not reported
}

// PageSource has the GPU pages in which a bound queue receives payload, as offsets in the GPU. It must not
// keep the slices, nor call the NIC.
type PageSource interface {
	// TakePages writes the offsets of free pages to dst, and returns their number.
	TakePages(queue int, dst []uint64) int
	ReturnPages(queue int, offs []uint64)
}

// Receiver receives frames and events from the polling goroutine. It must not keep arguments after a method returns.
// It may call Transmit and Refill, but not AllocDMA, BindQueue, UnbindQueue, Close or a method of Control.
type Receiver interface {
	Receive(frames []RxFrame)
	Completed(queue int, cookies []uint64)
	// Wake reports other changes: the NIC has stopped (Err), its link has changed, or it had lost its state (a new
	// generation) and the driver has turned the split of bound queues on again.
	Wake()
}

// GPUInfo is a GPU whose memory the device may reach.
type GPUInfo struct {
	ID   int    // Range.GPU
	Addr uint64 // for the device: in a guest, the address of the BAR
	Size uint64
	PCI  string // address of its PCI device, if it is one
}

// Stats are a NIC's counters, not read at one instant.
type Stats struct {
	Busy   time.Duration // polling, with work
	Spin   time.Duration
	Asleep time.Duration
	Sleeps uint64
	Wakes  uint64 // sleeps that the program or a time limit ended
	Rounds uint64 // polls of all queues

	Rx []QueueStats
	Tx []QueueStats
}

// QueueStats counts a queue's work.
type QueueStats struct {
	Frames  uint64
	Bytes   uint64 // of frames, including payload
	Payload uint64 // bytes in GPU memory
	Kicks   uint64
	Full    uint64 // transmit: the ring was full; receive: too few pages or descriptors to post a bound queue's chains
	Unsplit uint64 // unsplit frames on a bound queue, dropped
	Dropped uint64 // frames dropped for other reasons
	Control uint64
}

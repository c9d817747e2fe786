package driver

import (
	"time"

	"vnic.dev/vnic/splitter"
)

// PageSize is the size of the pages of a PageSource, in bytes.
const PageSize = 4096

// Range is a piece of a GPU's memory: Len bytes at Off.
type Range struct {
	GPU int
	Off uint64
	Len uint32
}

// RxFrame is a received frame, valid until Receiver.Receive returns. Header may be in memory that the device
// can change at any time.
type RxFrame struct {
	Queue      int
	Header     []byte  // all headers if Split, else the whole frame, without virtio_net_hdr
	Split      bool    // it came to a bound queue
	Payload    []Range // if Split: in order, each within one page, from the page's start; the Receiver owns the pages
	PayloadLen int     // bytes of Payload
	CsumGood   bool    // the device vouches for the layer 4 checksum, which in the frame may be incomplete
	GSOType    splitter.GSOType
	GSOSize    uint16
}

// TxFrame is a frame to send: Header, then Linear, then the Device ranges. [NIC.Transmit] copies Header and Linear;
// the memory of Device must not change until the device has returned the frame, which Completed reports by the
// cookie.
type TxFrame struct {
	Header     []byte
	Linear     []byte
	Device     []Range
	NeedsCsum  bool // the checksum at CsumStart+CsumOffset is to be completed; it has the pseudo-header's sum
	CsumStart  uint16
	CsumOffset uint16
	GSOType    splitter.GSOType
	GSOSize    uint16
	Cookie     uint64 // Completed reports it when the device has returned the frame; 0: not reported
}

// PageSource has the GPU pages in which a bound queue receives payload, as offsets in the GPU. It must not
// keep the slices, nor call the NIC.
type PageSource interface {
	// TakePages takes free pages, writes their offsets to dst, and returns their number, at most len(dst).
	TakePages(queue int, dst []uint64) int
	// ReturnPages gets pages back that no frame has used.
	ReturnPages(queue int, offs []uint64)
}

// Receiver receives frames and events from the polling goroutine. It must not keep arguments after a method returns.
// It may call Transmit and Refill, but not AllocDMA, BindQueue, UnbindQueue, Close or a method of Control.
type Receiver interface {
	Receive(frames []RxFrame)
	Completed(queue int, cookies []uint64)
	// Wake reports other changes: the NIC has stopped by an error (Err), its link has changed, or it had lost its state
	// (a new generation) and the driver has turned the split of bound queues on again.
	Wake()
}

// GPUInfo is a GPU whose memory the device may reach.
type GPUInfo struct {
	ID   int    // Range.GPU
	Addr uint64 // for the device: guest-physical; in a guest, the address of the BAR
	Size uint64
	PCI  string // with OpenPCI, address of its PCI device, such as "0000:00:03.0"; else empty
}

// Stats are a NIC's counters, not read at one instant.
type Stats struct {
	Busy   time.Duration // all time that is not Spin or Asleep
	Spin   time.Duration
	Asleep time.Duration
	Sleeps uint64
	Wakes  uint64 // sleeps that the program or a time limit ended
	Rounds uint64 // polls of all queues

	Rx []QueueStats
	Tx []QueueStats
}

// QueueStats counts a queue's work. Unsplit, Dropped and Control count received frames, and are 0 for a transmit
// queue.
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

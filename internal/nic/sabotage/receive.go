package sabotage

import (
	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/splitter"
)

// fcsLen is the length of Ethernet's frame check sequence (IEEE 802.3, clause 3.2.9), which a NIC strips.
const fcsLen = 4

// extraHeader is how many bytes of payload splitLate moves to the header buffer.
const extraHeader = 2

type receive struct {
	nic.RxQueue
	occasions nic.Occasions
	damage
	pkt wire.Packet // scratch: the damaged packet
	was nic.Frame   // scratch: the frame before the damage
}

// damage has the functions that damage a frame before or after the queue puts it. The queue's lock is held.
type damage struct {
	fits   func(f *nic.Frame) bool          // reports whether the fault can hit a frame
	before func(f *nic.Frame)               // damages f before Put; f.Packet is a shallow copy. nil: none
	after  func(m *nic.Mover, f *nic.Frame) // damages f in the guest's memory, or its counts, after Put. nil: none
}

func onReceive(w damage) func(*nic.Sabotage) {
	return func(s *nic.Sabotage) {
		s.Rx = func(q nic.RxQueue) nic.RxQueue {
			return &receive{RxQueue: q, occasions: s.Occasions(), damage: w}
		}
	}
}

// Put implements nic.RxQueue. A frame that the queue does not take is no occasion: the port may put it again.
func (q *receive) Put(m *nic.Mover, f *nic.Frame) nic.Result {
	if !q.fits(f) {
		return q.RxQueue.Put(m, f)
	}
	due := q.occasions.Due()
	q.was = *f
	if due && q.before != nil {
		q.pkt = *f.Packet
		f.Packet = &q.pkt
		q.before(f)
	}
	res := q.RxQueue.Put(m, f)
	*f = q.was
	if res != nic.PutTaken {
		return res
	}
	q.occasions.Pass()
	if due && q.after != nil {
		q.after(m, f)
	}
	return res
}

// hasPayload reports whether a frame has more than fcsLen bytes of TCP or UDP payload. A fault of all frames
// would make ARP fail.
func hasPayload(f *nic.Frame) bool {
	c := f.Meta.Headers.Class
	return f.PayloadLen > fcsLen && (c == splitter.TCP || c == splitter.UDP)
}

// misplace rotates the payload in the guest's memory by one byte: the last byte comes first.
func misplace(m *nic.Mover, f *nic.Frame) {
	segs := m.Placed(0, f.PayloadLen)
	b := make([]byte, f.PayloadLen)
	if n, err := m.Copier().Read(b[1:], segs); err != nil || n != len(b)-1 {
		return // the receiver's memory is gone
	}
	last := dma.Cut(nil, segs, uint64(len(b)-1), 1)
	_, _ = m.Copier().Read(b[:1], last)
	_, _ = m.Copier().Write(segs, b)
}

// splits reports whether only the frame's headers go to the header buffer, and splitLate may hit the frame: its payload
// is longer than extraHeader.
func splits(f *nic.Frame) bool {
	return f.Split && f.HeaderLen == uint32(len(f.Header)) && f.PayloadLen > extraHeader
}

func splitLate(f *nic.Frame) { f.HeaderLen += extraHeader }

func unverified(f *nic.Frame) bool {
	c := f.Meta.Headers.Class
	return f.Meta.Csum == splitter.CsumNone && (c == splitter.TCP || c == splitter.UDP)
}

func vouch(f *nic.Frame) { f.Meta.Csum = splitter.CsumGood }

// resize makes a frame longer by the number by, which may be negative. If the header buffer is to have payload, too,
// HeaderLen changes likewise.
func resize(f *nic.Frame, by int32) {
	f.PayloadLen = uint32(int32(f.PayloadLen) + by)
	if f.Split && f.HeaderLen > uint32(len(f.Header)) {
		f.HeaderLen = uint32(int32(f.HeaderLen) + by)
	}
}

// sequence is a made-up frame check sequence.
var sequence = dma.NewBuffer([]byte{0xde, 0xbb, 0x20, 0xe3}, dma.Host)

// lengthen appends the made-up frame check sequence to the frame, like a NIC that does not strip it.
func lengthen(f *nic.Frame) {
	rest := dma.Cut(nil, f.Payload, 0, uint64(f.PayloadLen))
	f.Payload = append(rest, sequence.Segment(0, fcsLen))
	resize(f, fcsLen)
}

// fitsLonger reports whether lengthen may hit the frame.
func fitsLonger(f *nic.Frame) bool {
	return hasPayload(f) && f.Meta.GSOType == splitter.GSONone && !(f.Split && f.HeaderLen > uint32(len(f.Header)))
}

// shorten cuts off the last fcsLen bytes, like a NIC that strips a frame check sequence twice.
func shorten(f *nic.Frame) { resize(f, -fcsLen) }

func miscount(m *nic.Mover, _ *nic.Frame) { m.Miscount(1) }

// uncalled is a receive queue that, when an occasion is due, does not interrupt its driver.
type uncalled struct {
	nic.RxQueue
	occasions nic.Occasions
}

func dropCalls(s *nic.Sabotage) {
	s.Rx = func(q nic.RxQueue) nic.RxQueue { return &uncalled{q, s.Occasions()} }
}

// Flush implements nic.RxQueue.
func (q *uncalled) Flush() (call bool) {
	if call = q.RxQueue.Flush(); !call {
		return false
	}
	due := q.occasions.Due()
	q.occasions.Pass()
	return !due
}

// stopped is a receive queue that changes a byte in the buffer of the last payload that it took, when an occasion is
// due and the address space has not changed since. An occasion is a frame that the queue refuses because it has
// stopped or receive is not enabled.
type stopped struct {
	nic.RxQueue
	occasions  nic.Occasions
	last       []dma.Segment // memory of the first byte of the last payload
	generation uint64        // generation of the address space in which last is valid
}

func writeAfterStop(s *nic.Sabotage) {
	s.Rx = func(q nic.RxQueue) nic.RxQueue { return &stopped{RxQueue: q, occasions: s.Occasions()} }
}

// Put implements nic.RxQueue.
func (q *stopped) Put(m *nic.Mover, f *nic.Frame) nic.Result {
	res := q.RxQueue.Put(m, f)
	switch res {
	case nic.PutTaken:
		if f.PayloadLen > 0 {
			q.last, q.generation = append(q.last[:0], m.Placed(0, 1)...), m.Space().Generation()
		}
	case nic.PutDisabled, nic.PutStopped:
		due := q.occasions.Due()
		q.occasions.Pass()
		if due && len(q.last) > 0 && q.generation == m.Space().Generation() {
			var b [1]byte
			_, _ = m.Copier().Read(b[:], q.last)
			b[0] = ^b[0]
			_, _ = m.Copier().Write(q.last, b[:])
		}
	}
	return res
}

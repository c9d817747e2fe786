package sabotage

import (
	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/splitter"
)

// fcsLen is the length of Ethernet's frame check sequence (IEEE 802.3, clause 3.2.9), which a NIC takes off, and does
// not count.
const fcsLen = 4

// extraHeader is how many bytes of payload a header buffer gets too many.
const extraHeader = 2

// receive is a receive queue that does something wrong with frames that it takes.
type receive struct {
	nic.RxQueue
	occasions nic.Occasions
	way
	pkt wire.Packet // scratch, as frame
	was nic.Frame
}

// way is what is done wrong, before a frame is put or after it; the other one is nil. All are called under the queue's
// lock, inside the epoch.
type way struct {
	fits   func(f *nic.Frame) bool          // says whether there is something to be done wrong with this frame
	before func(f *nic.Frame)               // changes what is put. The packet is a copy; what it refers to is not.
	after  func(m *nic.Mover, f *nic.Frame) // changes what was put
}

// onReceive makes receive queues that go wrong this way.
func onReceive(w way) func(*nic.Sabotage) {
	return func(s *nic.Sabotage) {
		s.Rx = func(q nic.RxQueue) nic.RxQueue {
			return &receive{RxQueue: q, occasions: s.Occasions(), way: w}
		}
	}
}

// Put implements nic.RxQueue. A frame that is not taken comes again, and is the same occasion.
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

// hasPayload says whether a frame has payload of TCP or UDP to speak of. Others are left alone: without them no address
// would be found.
func hasPayload(f *nic.Frame) bool {
	c := f.Meta.Headers.Class
	return f.PayloadLen > fcsLen && (c == splitter.TCP || c == splitter.UDP)
}

// misplace has the payload lie one byte behind its place, its last byte first. Its checksum was made before.
func misplace(m *nic.Mover, f *nic.Frame) {
	at := m.Placed(0, f.PayloadLen)
	b := make([]byte, f.PayloadLen)
	if n, err := m.Copier().Read(b[1:], at); err != nil || n != len(b)-1 {
		return // somebody else took the memory away
	}
	last := dma.Cut(nil, at, uint64(len(b)-1), 1)
	_, _ = m.Copier().Read(b[:1], last)
	_, _ = m.Copier().Write(at, b)
}

// splits says whether a frame's header buffer is to have its headers and nothing else.
func splits(f *nic.Frame) bool {
	return f.Split && f.HeaderLen == uint32(len(f.Header)) && f.PayloadLen > extraHeader
}

// splitLate has the split be behind the first bytes of the payload.
func splitLate(f *nic.Frame) { f.HeaderLen += extraHeader }

// unverified says whether a checksum is to be verified by the NIC.
func unverified(f *nic.Frame) bool {
	c := f.Meta.Headers.Class
	return f.Meta.Csum == splitter.CsumNone && (c == splitter.TCP || c == splitter.UDP)
}

// vouch says that a checksum is good, whatever it is.
func vouch(f *nic.Frame) { f.Meta.Csum = splitter.CsumGood }

// resize changes a frame's length. What has no headers that are split from it lies in the header buffer whole.
func resize(f *nic.Frame, by int32) {
	f.PayloadLen = uint32(int32(f.PayloadLen) + by)
	if f.Split && f.HeaderLen > uint32(len(f.Header)) {
		f.HeaderLen = uint32(int32(f.HeaderLen) + by)
	}
}

// sequence stands for a frame check sequence.
var sequence = dma.NewBuffer([]byte{0xde, 0xbb, 0x20, 0xe3}, dma.Host)

// lengthen counts the frame check sequence as the frame's.
func lengthen(f *nic.Frame) {
	rest := dma.Cut(nil, f.Payload, 0, uint64(f.PayloadLen))
	f.Payload = append(rest, sequence.Segment(0, fcsLen))
	resize(f, fcsLen)
}

// fitsLonger says whether what is longer than it was fits where it belongs.
func fitsLonger(f *nic.Frame) bool {
	return hasPayload(f) && f.Meta.GSOType == splitter.GSONone && !(f.Split && f.HeaderLen > uint32(len(f.Header)))
}

// shorten takes the frame check sequence off a frame that has none any more.
func shorten(f *nic.Frame) { resize(f, -fcsLen) }

// miscount counts a byte of payload that is not there, in host memory.
func miscount(m *nic.Mover, _ *nic.Frame) { m.Miscount(1) }

// uncalled is a receive queue whose driver is not called.
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

// stopped is a receive queue that still writes to its last buffer when it is stopped, with each frame that comes then.
type stopped struct {
	nic.RxQueue
	occasions  nic.Occasions
	last       []dma.Segment // where the last frame's payload began
	generation uint64        // of the space, for which that is good
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

// Package nictest is the suite that each device model of a NIC passes: what a guest sees of header split, steering,
// segmentation, checksums, counters and the control channel, whatever its rings look like.
//
// A device model gives it two guests on one switch (Lab). Everything goes through their rings: there are no mocks.
//
// Beside the suite it has what the tests of all device models need: a guest's memory and its GPU (Memory), three guests
// on a switch (World), and equal frames without allocations of its own, for benchmarks (Stream).
package nictest

import (
	"encoding/binary"
	"testing"
	"time"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/splitter"
)

// PayloadBuf is the size of a payload buffer of a split queue.
const PayloadBuf = 4096

// Frame is a frame as a guest sends or receives it.
type Frame struct {
	Header  []byte // sent: the frame's headers. Received: what lay in the header buffer, or the whole frame if not Split
	Payload []byte
	Split   bool
	Dirty   bool // received: a header buffer has more in it than headers
	Buffers int  // received: how many it took
	Partial bool // the checksum is left to the receiver, at Start + Offset
	Good    bool // received: the checksum is vouched for
	Start   uint16
	Offset  uint16
	GSO     splitter.GSOType
	MSS     uint16
}

// Bytes is the frame in one piece.
func (f *Frame) Bytes() []byte { return append(append([]byte(nil), f.Header...), f.Payload...) }

// Guest is a guest with a driver on its NIC. Whatever goes wrong fails the test.
type Guest interface {
	Port() *nic.Port
	MAC() wire.MAC
	// SetSplit turns a receive queue's header split on or off.
	SetSplit(queue int, on bool)
	// Post gives a receive queue n buffers: of at least 64 KiB, or, where its split is on, a header buffer and a payload
	// buffer of PayloadBuf bytes in GPU memory. Header buffers are filled with a pattern before.
	Post(queue, n int)
	// Send sends frames on a transmit queue and returns when the NIC is done with them.
	Send(queue int, f ...Frame)
	// SendGPU is Send with the payload in GPU memory, in the second half of the GPU's.
	SendGPU(queue int, f Frame)
	// Queue is Send without the waiting, Sent does it.
	Queue(queue int, f ...Frame)
	Sent(queue int)
	// Receive waits for a frame on a queue.
	Receive(queue int) Frame
	// Arm wants to be called for the next frame on a receive queue, on which nothing waits. Called says whether the NIC
	// has called since.
	Arm(queue int)
	Called(queue int) bool
	// Stop takes a receive queue away from the NIC.
	Stop(queue int)
	// Buffers copies what lies in the buffers that a receive queue had, header buffers included.
	Buffers(queue int) [][]byte
	// Copied is what the worker of a transmit queue has copied: all that is moved of its frames, at both ends.
	Copied(queue int) *dma.Counts
}

// Options are how a lab is made.
type Options struct {
	NoOffload bool // the receiver takes no GSO packets, nor partial checksums if any does
	NoP2P     bool // the receiver's NIC does not reach its GPU, nor the sender's its

	Hold     time.Duration // nic.Config's, of both
	Clock    func() int64  // likewise
	Sabotage *nic.Sabotage // of both NICs; nil: none
	Wait     time.Duration // how long a guest waits for its NIC until that fails the test; 0: as long as it likes
}

// Traits are what device models may differ in.
type Traits struct {
	OwnUnsplit bool // frames that cannot be split stay on their queue; else they go to queue 0
	Completes  bool // a receiver of offloads gets checksums complete and vouched for, never partial
	SplitStops bool // a queue whose split changes is stopped for it, so buffers do not come back; queue 0 may be split
	RingHeader int  // bytes that go with the headers of each frame (virtio_net_hdr)
}

// Lab makes two guests with three queue pairs each and an MTU of 9000 on one switch. Both have sent
// a frame, so that the switch knows them; the GPU's first half is a registered buffer of their
// ports, the second too.
type Lab func(t testing.TB, o Options) (a, b Guest)

// Spec is what TCP makes.
type Spec struct {
	V6      bool
	VLANs   int
	Ext     int // bytes of IPv6 destination options, a multiple of 8
	Opts    int // bytes of TCP options, a multiple of 4, at most 40
	Payload int
	Port    uint16 // destination; 0: 2000
	UDP     bool
	Flags   uint8 // of TCP; 0: ACK
	Seq     uint32
}

// Make makes a TCP (or UDP) frame with its checksum partial. The payload counts from seed on.
func Make(dst, src wire.MAC, s Spec) Frame {
	be := binary.BigEndian
	var b []byte
	b = append(append(b, dst[:]...), src[:]...)
	for i := range s.VLANs {
		tag := uint16(splitter.EtherTypeVLAN)
		if i == 0 && s.VLANs == 2 {
			tag = splitter.EtherTypeQinQ
		}
		b = be.AppendUint16(be.AppendUint16(b, tag), uint16(10+i))
	}
	l4 := 20 + s.Opts
	proto := byte(splitter.ProtoTCP)
	if s.UDP {
		l4, proto = 8, splitter.ProtoUDP
	}
	if s.V6 {
		b = be.AppendUint16(b, splitter.EtherTypeIPv6)
		ip := make([]byte, 40+s.Ext)
		ip[0], ip[6], ip[7] = 0x60, proto, 64
		be.PutUint16(ip[4:], uint16(s.Ext+l4+s.Payload))
		ip[8], ip[23], ip[24], ip[39] = 0xfd, src[5], 0xfd, dst[5]
		if s.Ext > 0 {
			ip[6], ip[40], ip[41] = 60, proto, byte(s.Ext/8-1)
			for at := 42; at < len(ip); { // PadN
				n := min(len(ip)-at, 257)
				ip[at] = 1
				if n >= 2 {
					ip[at+1] = byte(n - 2)
				} else {
					ip[at] = 0
				}
				at += n
			}
		}
		b = append(b, ip...)
	} else {
		b = be.AppendUint16(b, splitter.EtherTypeIPv4)
		ip := make([]byte, 20)
		ip[0], ip[8], ip[9] = 0x45, 64, proto
		be.PutUint16(ip[2:], uint16(20+l4+s.Payload))
		copy(ip[12:], []byte{10, 0, 0, src[5], 10, 0, 0, dst[5]})
		b = append(b, ip...)
	}
	th := make([]byte, l4)
	port := s.Port
	if port == 0 {
		port = 2000
	}
	be.PutUint16(th[0:], 1000)
	be.PutUint16(th[2:], port)
	if s.UDP {
		be.PutUint16(th[4:], uint16(8+s.Payload))
	} else {
		be.PutUint32(th[4:], s.Seq)
		th[12], th[13] = byte(l4/4)<<4, s.Flags
		if s.Flags == 0 {
			th[13] = splitter.ACK
		}
		for i := 20; i < l4; i++ {
			th[i] = 1 // no operation
		}
	}
	b = append(b, th...)
	f := Frame{Header: b, Payload: make([]byte, s.Payload), Partial: true}
	for i := range f.Payload {
		f.Payload[i] = byte(i*7 + i>>8 + int(s.Seq))
	}
	var h splitter.Headers
	_ = splitter.Parse(b, uint32(len(b)+s.Payload), &h)
	splitter.FixIPv4(&h, b)
	splitter.FixPartial(&h, b, uint32(s.Payload))
	f.Start, f.Offset, _ = splitter.CsumPlace(&h)
	return f
}

// Package nictest is the test suite that each device model of a NIC passes. It tests a NIC as a guest sees it,
// with two guests on one switch (Lab).
//
// The package also has a guest's memory and its GPU (Memory), three guests on a switch (World), and equal frames
// without allocations, for benchmarks (Stream).
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
	Header  []byte // sent: at least the headers. Received: the frame's bytes in the header buffer, or all if not Split
	Payload []byte
	Split   bool
	Dirty   bool // received: the NIC wrote more than headers to a header buffer
	Buffers int  // received: buffers used
	Partial bool // the receiver has to complete the checksum at Start + Offset
	Good    bool // received: the NIC marks the checksum as good
	Start   uint16
	Offset  uint16
	GSO     splitter.GSOType
	MSS     uint16
}

// Bytes returns the whole frame.
func (f *Frame) Bytes() []byte { return append(append([]byte(nil), f.Header...), f.Payload...) }

// Guest is a guest with a driver on its NIC. An error fails the test.
type Guest interface {
	Port() *nic.Port
	MAC() wire.MAC
	// SetSplit turns a receive queue's header split on or off.
	SetSplit(queue int, on bool)
	// Post posts buffers to a receive queue: if it is split, n pairs of a header buffer, filled with a pattern, and
	// a payload buffer of PayloadBuf bytes in GPU memory; otherwise n buffers of 68 KiB, or (gve) smaller ones, with
	// at least 17 KiB for each of the n, as far as the ring has room.
	Post(queue, n int)
	// Send sends frames on a transmit queue and returns when the NIC is done with them.
	Send(queue int, f ...Frame)
	// SendGPU is Send with the payload in the second half of GPU memory.
	SendGPU(queue int, f Frame)
	// Queue adds frames to a transmit queue; Sent waits until the NIC is done with them.
	Queue(queue int, f ...Frame)
	Sent(queue int)
	// Receive waits for a frame on a receive queue. A buffer returned unused (virtio) counts as an empty frame.
	Receive(queue int) Frame
	// Arm asks the NIC for an interrupt at the next frame on a receive queue. Called reports whether the NIC has
	// interrupted since, or since the previous Called.
	Arm(queue int)
	Called(queue int) bool
	// Stop takes a receive queue away from the NIC.
	Stop(queue int)
	// Buffers returns copies of the buffers that a receive queue has had, header buffers included.
	Buffers(queue int) [][]byte
	// Copied returns the counts of bytes that the worker of a transmit queue copies, at both ends, after the first call.
	Copied(queue int) *dma.Counts
}

// Options configure a lab.
type Options struct {
	NoOffload bool // guest b accepts no GSO packets, and no partial checksums if the model has such a choice
	NoP2P     bool // neither NIC reaches its guest's GPU peer to peer

	Hold     time.Duration // nic.Config.Hold
	Clock    func() int64  // nic.Config.Clock
	Sabotage *nic.Sabotage // nil: none
	Wait     time.Duration // how long a guest waits for its NIC; 0: the model's default
}

// Traits are the differences between device models that the suite needs.
type Traits struct {
	OwnUnsplit bool // unsplittable frames stay on their queue; otherwise they go to queue 0
	Completes  bool // receivers with offloads get complete checksums, never partial ones
	SplitStops bool // a change of split starts the queue anew, without its buffers; queue 0 may be split
	RingHeader int  // bytes before each frame's headers (virtio_net_hdr)
}

// Lab makes two guests on one switch, with three queue pairs each and an MTU of 9000, whose addresses the switch
// has learnt. Each guest has a GPU, and each half of the GPU's memory is a registered buffer of the guest's port.
type Lab func(t testing.TB, o Options) (a, b Guest)

// Spec describes a frame for Make.
type Spec struct {
	V6      bool
	VLANs   int
	Ext     int // with V6: bytes of destination options, a multiple of 8
	Opts    int // bytes of TCP options, a multiple of 4, at most 40
	Payload int
	Port    uint16 // destination; 0: 2000
	UDP     bool
	Flags   uint8 // TCP flags; 0: ACK
	Seq     uint32
}

// Make makes a TCP (or UDP) frame with a partial checksum. The payload's bytes depend on Seq.
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
			for off := 42; off < len(ip); { // PadN
				n := min(len(ip)-off, 257)
				ip[off] = 1
				if n >= 2 {
					ip[off+1] = byte(n - 2)
				} else {
					ip[off] = 0
				}
				off += n
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
			th[i] = 1
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

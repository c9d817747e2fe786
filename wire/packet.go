package wire

import (
	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/splitter"
)

// MAC is an Ethernet address.
type MAC [6]byte

// ControlMAC is the address of each NIC's control channel, and EtherTypeControl the type of its frames. They never pass
// the wire.
var ControlMAC = MAC{0x02, 0x76, 0x6e, 0x69, 0x63, 0x01}

// EtherTypeControl is an IEEE local experimental EtherType.
const EtherTypeControl = 0x88b5

// Packet is one frame, or one super-packet, described where it lies. The sender owns it and all it points to; a receiver
// may use it only until its Deliver returns.
//
// For a new packet the sender sets Header, Payload, PayloadLen and Meta (with Meta.Headers from splitter.Parse), then
// calls Prepare. To retry after Busy it sets Header, Payload and PayloadLen to the same bytes again if they have moved,
// leaves Meta and Progress as they are, and does not call Prepare.
type Packet struct {
	// Header holds the headers, a private copy: exactly Meta.Headers.HdrLen bytes for TCP and UDP; for all else at
	// least the link header (EthLen bytes), and as much more as the sender likes. The wire may complete a checksum
	// in it.
	Header     []byte
	Payload    []dma.Segment // the rest of the frame, where it lies now
	PayloadLen uint32        // bytes in Payload
	Meta       splitter.Meta
	Verdict    Verdict
	Progress   Progress // how much of it was disposed of before it met a busy port
	Tag        uint64   // the sender's own; the wire never looks
	Src, Dst   MAC      // from Header, by Prepare

	flood bool // link.go: some receiver of a flooded packet has taken it
}

// Prepare makes a new packet ready for Deliver: it clears verdict and progress, takes the addresses from the header and
// cuts the padding of a runt (what lies behind Meta.Headers.FrameLen).
func (p *Packet) Prepare() {}

// Len is the frame's length.
func (p *Packet) Len() uint32 { return uint32(len(p.Header)) + p.PayloadLen }

// Segments says how many segments the packet would be on a real wire.
func (p *Packet) Segments() uint32 { return 1 }

// Progress remembers what became of a part of a packet (which was cut), so that a retry repeats nothing. The zero value
// is a new packet's. A sender that builds its Packets anew for a retry carries it over.
type Progress struct {
	dst   uint32
	level [3]level
}

type level struct {
	done uint32
	have bool
	seq  uint64
}

// VerdictKind says what became of a packet.
type VerdictKind uint8

// Kinds of verdicts.
const (
	Pending VerdictKind = iota // not delivered yet
	Taken                      // copied, all of it or as much as an impaired link let pass
	Dropped                    // gone, for Reason
	Busy                       // not taken: retry when Queue has buffers
)

// Verdict is what Deliver did with a packet.
type Verdict struct {
	Kind   VerdictKind
	Reason DropReason // of Dropped
	Queue  Waitable   // of Busy
}

// Drop is the verdict of a packet dropped for a reason.
func Drop(r DropReason) Verdict { return Verdict{Kind: Dropped, Reason: r} }

// DropReason says why a packet was dropped.
type DropReason uint8

// Reasons to drop a packet.
const (
	DropNone       DropReason = iota
	DropNoBuffer              // the receiver had no buffer, and waiting was not allowed or went on for too long
	DropLinkLoss              // lost by an Impairment
	DropUnknownDst            // no port to give it to
	DropSamePort              // its destination is the port that it came from
	DropControlMAC            // control EtherType or control MAC outside the control channel
	DropTooBig                // longer than the receiver takes, and not to be cut
	DropStopped               // the port or its queue is stopped, or the link is detached
	DropFault                 // its memory went away under it
	DropBadFrame              // too short for a link header, or lengths that do not fit
	DropBadSource             // a multicast source address
	DropBadGSO                // a super-packet that contradicts itself
	DropBadCsum               // a partial checksum outside the frame
	DropDelay                 // left in a delay line: its link closed, or the receiver stayed busy
	DropDisabled              // the receiving queue is not enabled
	DropUnsplit               // the receiver wanted it split, and it cannot be
	NumDropReasons
)

// String gives the reason's name in counters.
func (r DropReason) String() string { return "" }

// Waitable is a receive queue without buffers.
type Waitable interface {
	// Arm registers a wake, to be called once, soon after the queue got buffers or died. It returns false if the queue
	// has buffers already (or is dead): then do not wait.
	Arm(w Waker) bool
	// Disarm takes the registration back. The wake may still come once, if it was on its way.
	Disarm(w Waker)
}

// Waker is woken by a Waitable.
type Waker interface {
	Wake() // never blocks (an eventfd write)
}

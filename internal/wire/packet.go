package wire

import (
	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/splitter"
)

// MAC is an Ethernet address.
type MAC [6]byte

// ControlMAC is the address of each NIC's control channel. The wire drops frames from it and to it.
var ControlMAC = MAC{0x02, 0x76, 0x6e, 0x69, 0x63, 0x01}

// EtherTypeControl is the type of control frames, an IEEE local experimental EtherType. The wire drops them.
const EtherTypeControl = 0x88b5

// Packet is one frame, or one GSO packet, described in place. The sender owns it and all memory that it
// refers to; a receiver may use it only until its Deliver returns. Of the exported fields, Link.Deliver
// writes only Verdict, Progress and From.
//
// For a new packet the sender sets Header, Payload, PayloadLen and Meta (with Meta.Headers from
// splitter.Parse), then calls Prepare. For a retry after Busy it keeps Progress and does not call Prepare.
type Packet struct {
	// Header holds the headers, in a private copy: exactly Meta.Headers.HdrLen bytes for TCP and UDP; for other
	// frames at least splitter.EthLen bytes.
	Header     []byte
	Payload    []dma.Segment // the rest of the frame: at least PayloadLen bytes
	PayloadLen uint32
	Meta       splitter.Meta // a GSO packet must be CsumPartial; with CsumPartial, CsumAllowed must hold
	Verdict    Verdict
	Src, Dst   MAC    // from Header, by Prepare
	From       uint32 // Link.Serial of the sending port's link, set by that link
	Tag        uint64 // for the sender's use
	Leaves     int64  // the sending NIC's: when its PCIe links are free for the packet, by shape.Now; 0: not reserved yet

	taken  bool       // flood: a receiver has taken it
	reason DropReason // flood: drop reason of the last receiver that has not taken it
	fault  fault      // change for an Impairment, which the receiver's link makes
	mark   uint64
	origin *Packet // from which this piece was cut or copied; nil: the packet is the sender's, or from a delay line

	// Progress is the last field, because most packets do not use it.
	Progress Progress
}

// Prepare prepares a new packet for Deliver: it clears Verdict, Progress and Leaves, sets Src and Dst from the
// header, and cuts the padding of a short IP packet.
func (p *Packet) Prepare() {
	// One statement for each field: one assignment of several values is slower.
	p.Verdict = Verdict{}
	p.Progress.reset()
	p.Leaves = 0
	p.fault.kind = passes
	if len(p.Header) >= splitter.EthLen {
		p.Dst = MAC(p.Header[0:6])
		p.Src = MAC(p.Header[6:12])
	} else {
		p.Dst = MAC{}
		p.Src = MAC{}
	}
	if n := p.Meta.Headers.Carried(p.Len()); n < p.Len() {
		p.Header = p.Header[:min(uint32(len(p.Header)), n)]
		p.PayloadLen = n - uint32(len(p.Header))
		p.Payload = trim(p.Payload, p.PayloadLen)
	}
}

func trim(segs []dma.Segment, n uint32) []dma.Segment {
	for i := range segs {
		if n <= segs[i].Len {
			segs[i].Len = n
			if n > 0 {
				i++
			}
			return segs[:i]
		}
		n -= segs[i].Len
	}
	return segs
}

// Len returns the frame's length.
func (p *Packet) Len() uint32 { return uint32(len(p.Header)) + p.PayloadLen }

// Trailed reports whether the frame has bytes behind a TCP or UDP packet, which the packet's checksum does not cover.
func (p *Packet) Trailed() bool {
	h := &p.Meta.Headers
	return p.Len() > h.FrameLen && (h.Class == splitter.TCP || h.Class == splitter.UDP)
}

// Segments returns the number of segments that the packet would take on a real wire.
func (p *Packet) Segments() uint32 {
	if p.Meta.GSOType == splitter.GSONone || p.PayloadLen <= uint32(p.Meta.GSOSize) || p.Meta.GSOSize == 0 {
		return 1
	}
	mss := uint32(p.Meta.GSOSize)
	return (p.PayloadLen + mss - 1) / mss
}

// Bytes that Ethernet adds to a frame on the wire (IEEE 802.3, clauses 3.1.1 and 4.4.2), and the least length
// of a frame without its checksum.
const (
	EtherOverhead = 7 + 1 + 4 + 12
	etherLeast    = 64 - 4
)

// WireLen returns how many bytes the packet would take on a real wire. It takes all segments of a GSO packet as equally
// long.
func (p *Packet) WireLen() uint32 {
	n, h := p.Segments(), uint32(len(p.Header))
	return p.PayloadLen + n*(max(h, etherLeast-min(etherLeast, p.PayloadLen/n))+EtherOverhead)
}

// Progress records how much of a packet an impaired link, or a link that has to cut it, has finished, so that a retry
// goes on there. A new packet has the zero value.
type Progress struct {
	begun   bool   // the fields below may be set
	link    uint32 // Serial of the link to which levels down and fit belong
	level   [levels]level
	arrives int64
	dropped [maxNoted / 8]uint64 // a bit for each of the first segments: lost on a sender's link with Impairment.Drop
}

// Arrives returns a field for the receiver: the time, by shape.Now, from which on the receiver's PCIe links are free
// for the next part of the packet; 0: not reserved yet.
func (g *Progress) Arrives() *int64 {
	g.begun = true
	return &g.arrives
}

func (g *Progress) reset() {
	if g.begun {
		*g = Progress{}
	}
}

func (g *Progress) up() *level {
	g.begun = true
	return &g.level[levelUp]
}

// maxNoted is the size of Progress.dropped in bytes.
const maxNoted = 16

// Levels at which packets are cut, in their order.
const (
	levelUp   = iota // for an impairment of the sender's link
	levelDown        // for an impairment of the receiver's link
	levelFit         // for the receiver's Limits
	levels
)

type level struct {
	done  uint32 // payload bytes that are finished
	known bool
	taken bool
	held  uint16 // segments that the link has held back (Impairment.Reorder)
	seq   uint64 // number of the packet's first segment on the link
}

// VerdictKind is the kind of a Verdict.
type VerdictKind uint8

// Kinds of verdicts.
const (
	Pending VerdictKind = iota // not delivered yet
	Taken                      // at least a part of it was copied, by a receiver or to a delay line
	Dropped
	Busy // not finished: retry when Queue has buffers, or at Until
)

var kindNames = [...]string{"pending", "taken", "dropped", "busy"}

// String returns the kind's name.
func (k VerdictKind) String() string { return kindNames[min(k, Busy)] }

// Verdict is the result of Deliver for a packet.
type Verdict struct {
	Kind   VerdictKind
	Reason DropReason // for Dropped
	// Queue, for Busy, is the queue to wait for; for Taken, the queue that has the packet; nil: unknown. If a Busy packet
	// waits for a link, Queue is nil, and Until is the time for the next try, by shape.Now; otherwise Until is 0.
	Queue Waitable
	Until int64
}

// Drop returns the verdict for a packet dropped for a reason.
func Drop(r DropReason) Verdict { return Verdict{Kind: Dropped, Reason: r} }

// Waitable is a receive queue for whose buffers senders can wait.
type Waitable interface {
	// Arm registers w: the queue calls w.Wake once, when it may have buffers for w or has stopped. Arm returns false,
	// and does not register w, if that is so already.
	Arm(w Waker) bool
	// Disarm removes the registration; after the call of w.Wake it may let the queue wake other senders. A call of
	// w.Wake that has already begun may still end after Disarm.
	Disarm(w Waker)
}

// Waker is a sender that waits for a Waitable.
type Waker interface {
	Wake() // must not block
}

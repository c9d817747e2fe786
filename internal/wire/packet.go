package wire

import (
	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/splitter"
)

// MAC is an Ethernet address.
type MAC [6]byte

// ControlMAC is the address of each NIC's control channel. The wire drops its frames.
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
	Meta       splitter.Meta // a GSO packet is CsumPartial; with CsumPartial, CsumAllowed holds
	Verdict    Verdict
	Src, Dst   MAC    // from Header, by Prepare
	From       uint32 // Link.Serial of the sending port, set by the wire
	Tag        uint64 // the sender's own
	Leaves     int64  // the sender's own: when its PCIe links are free for the packet, by shape.Now; 0 at first

	taken  bool       // flood: some receiver has taken it
	reason DropReason // flood: drop reason of the last receiver that has not taken it
	fault  fault      // change for an Impairment
	mark   uint64
	origin *Packet // from which this piece was cut or copied

	// Progress is the last field, because most packets have none.
	Progress Progress
}

// Prepare prepares a new packet for Deliver: it clears verdict and progress, sets the addresses from the
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

// Trailed reports whether bytes lie behind the TCP or UDP packet, which its checksum does not cover.
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

// WireLen returns how many bytes the packet would take on a real wire.
func (p *Packet) WireLen() uint32 {
	n, h := p.Segments(), uint32(len(p.Header))
	return p.PayloadLen + n*(max(h, etherLeast-min(etherLeast, p.PayloadLen/n))+EtherOverhead)
}

// Progress records the fate of the parts of a packet that the wire had to cut, so that a retry repeats
// nothing. A new packet has the zero value.
type Progress struct {
	begun   bool   // the fields below may be set
	link    uint32 // Serial of the last link that met the packet on levels down and fit
	level   [levels]level
	arrives int64
	dropped [maxNoted / 8]uint64 // bits of segments lost by Impairment.Drop on the sender's link
}

// Arrives returns a field for the receiver: the time, by shape.Now, from which on its PCIe links are free for
// the next part of the packet; 0 at first.
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
	levelUp   = iota // the sender's link is impaired
	levelDown        // the receiver's link is impaired
	levelFit         // the packet is beyond the receiver's Limits
	levels
)

type level struct {
	done  uint32 // payload bytes that are finished
	known bool
	taken bool
	held  uint16 // segments held in a delay line
	seq   uint64 // number of the packet's first segment on the link
}

// VerdictKind is the kind of a Verdict.
type VerdictKind uint8

// Kinds of verdicts.
const (
	Pending VerdictKind = iota // not delivered yet
	Taken                      // copied, at least a part of it
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
	// Queue, for Busy, is the queue to wait for; for Taken, the queue that has the packet; nil: unknown. If the
	// packet waits for a link, Queue is nil, and Until is the time for the next try, by shape.Now.
	Queue Waitable
	Until int64
}

// Drop returns the verdict for a packet dropped for a reason.
func Drop(r DropReason) Verdict { return Verdict{Kind: Dropped, Reason: r} }

// Waitable is a receive queue for whose buffers senders can wait.
type Waitable interface {
	// Arm registers w: the queue calls w.Wake once, when it has buffers for w or has stopped. Arm returns false, and
	// w must not wait, if that is so already.
	Arm(w Waker) bool
	// Disarm removes the registration, or ends the turn that began with the call of w.Wake. A call of w.Wake
	// that has already begun may still end after Disarm.
	Disarm(w Waker)
}

// Waker is a sender that waits for a Waitable.
type Waker interface {
	Wake() // must not block
}

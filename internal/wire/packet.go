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

// Packet is one frame, or one GSO packet, described where it lies. The sender owns it and all it
// points to; a receiver may use it only until its Deliver returns. The wire writes only Verdict,
// Progress and From.
//
// For a new packet the sender sets Header, Payload, PayloadLen and Meta (with Meta.Headers from splitter.Parse), then
// calls Prepare. To retry after Busy it sets Header, Payload and PayloadLen to the same bytes again if they have moved,
// leaves Progress as it is, and does not call Prepare.
type Packet struct {
	// Header holds the headers, a private copy: exactly Meta.Headers.HdrLen bytes for TCP and UDP; for all else at
	// least the link header (splitter.EthLen bytes), and as much more as the sender likes.
	Header     []byte
	Payload    []dma.Segment // the rest of the frame, where it lies now: at least PayloadLen bytes
	PayloadLen uint32        // the frame's bytes behind Header
	Meta       splitter.Meta // a GSO packet is CsumPartial; of CsumPartial, CsumAllowed holds
	Verdict    Verdict
	Src, Dst   MAC    // from Header, by Prepare
	From       uint32 // Link.Serial of the port that sent it: the wire says so, whatever the frame claims
	Tag        uint64 // the sender's own; the wire never looks
	Leaves     int64  // the sender's own, 0 at first: from when on it has its sender's links, of shape.Now

	taken  bool       // flood: some receiver has it
	reason DropReason // flood: why the last one that has not
	fault  fault      // what an impaired link does to it behind forwarding
	mark   uint64     // of the sender's tap
	origin *Packet    // of a piece: what it was cut from

	// Progress is how much of it was disposed of before it met a busy port. It is last, as most packets have none, and
	// what is before it is in four lines of the processor's cache.
	Progress Progress
}

// Prepare makes a new packet ready for Deliver: it clears verdict and progress, takes the addresses from the header and
// cuts the padding of a runt (Meta.Headers.Carried). What lies behind the IP packet of a longer frame is carried with
// it.
func (p *Packet) Prepare() {
	// One by one: in an assignment of several each value is written twice, and read before the first write is done.
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

// trim shortens segs, in place, to their first n bytes.
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

// Len is the frame's length.
func (p *Packet) Len() uint32 { return uint32(len(p.Header)) + p.PayloadLen }

// Trailed says that bytes lie behind the packet of TCP or UDP, which its checksum does not cover. Nothing is cut from
// such a frame, merged with it, or found out about its checksum: its receiver does that. A partial checksum is complete
// before the wire gives it to anybody.
func (p *Packet) Trailed() bool {
	h := &p.Meta.Headers
	return p.Len() > h.FrameLen && (h.Class == splitter.TCP || h.Class == splitter.UDP)
}

// Segments says how many segments the packet would be on a real wire.
func (p *Packet) Segments() uint32 {
	if p.Meta.GSOType == splitter.GSONone || p.PayloadLen <= uint32(p.Meta.GSOSize) || p.Meta.GSOSize == 0 {
		return 1
	}
	mss := uint32(p.Meta.GSOSize)
	return (p.PayloadLen + mss - 1) / mss
}

// What Ethernet adds to a frame on the wire, in bytes (IEEE 802.3, clauses 3.1.1 and 4.4.2): a preamble of 7 and the
// start of the frame, the checksum of 4 behind it, and a gap of 96 bits. A frame is padded to 64 with its checksum.
const (
	EtherOverhead = 7 + 1 + 4 + 12
	etherLeast    = 64 - 4
)

// WireLen is how many bytes the packet would take of a real wire: each of its segments with a header of its own, what
// Ethernet adds, and padding.
func (p *Packet) WireLen() uint32 {
	n, h := p.Segments(), uint32(len(p.Header))
	return p.PayloadLen + n*(max(h, etherLeast-min(etherLeast, p.PayloadLen/n))+EtherOverhead)
}

// Progress remembers what became of the parts of a packet that had to be cut, so that a retry repeats nothing. The zero
// value is a new packet's. A sender that builds new Packets for a retry carries it over.
type Progress struct {
	begun   bool   // what follows may be set: most packets meet no link that would
	link    uint32 // link that met the packet last, on levels down and fit
	level   [levels]level
	arrives int64                // see Arrives
	dropped [maxNoted / 8]uint64 // segments that were lost by their number on the way up, for taps
}

// Arrives is where the receiver notes from when on, of shape.Now, the part that is to be delivered next has its links;
// 0 at first.
func (g *Progress) Arrives() *int64 {
	g.begun = true
	return &g.arrives
}

// reset makes it a new packet's, at no cost where it is.
func (g *Progress) reset() {
	if g.begun {
		*g = Progress{}
	}
}

// up is where the sender's link notes what it has let pass.
func (g *Progress) up() *level {
	g.begun = true
	return &g.level[levelUp]
}

// maxNoted: of so many segments, by eight, of a packet it is remembered which were lost by their number.
const maxNoted = 16

// Where packets are cut, in their order. What is cut at one level is a packet of its own at the next.
const (
	levelUp   = iota // the sender's link is impaired
	levelDown        // the receiver's link is impaired
	levelFit         // to what the receiver takes
	levels
)

// level is the progress on one level.
type level struct {
	done  uint32 // payload bytes disposed of
	known bool   // seq is
	taken bool   // some of it reached its receiver, or a delay line
	held  uint16 // segments that went to a delay line
	seq   uint64 // number of the packet's first segment on an impaired link
}

// VerdictKind says what became of a packet.
type VerdictKind uint8

// Kinds of verdicts.
const (
	Pending VerdictKind = iota // not delivered yet
	Taken                      // copied: all of it, or what an impaired link let pass
	Dropped                    // gone, for Reason
	Busy                       // not taken: retry when Queue has buffers, or at Until
)

var kindNames = [...]string{"pending", "taken", "dropped", "busy"}

// String gives the kind's name.
func (k VerdictKind) String() string { return kindNames[min(k, Busy)] }

// Verdict is what Deliver did with a packet.
type Verdict struct {
	Kind   VerdictKind
	Reason DropReason // of Dropped
	// Queue is what to wait for, of Busy; of Taken the queue that has it, nil where that is not known. Where Busy is for
	// a link that is taken, Queue is nil, and Until the time when it is free, of shape.Now: the receiver is not to blame.
	Queue Waitable
	Until int64
}

// Drop is the verdict of a packet dropped for a reason.
func Drop(r DropReason) Verdict { return Verdict{Kind: Dropped, Reason: r} }

// Waitable is a receive queue without buffers.
type Waitable interface {
	// Arm registers a wake, to be called once, after the queue got buffers or died: soon, but for wakers that take turns
	// (nic.PortWaker). It returns false if the queue has buffers already (or is dead): then do not wait.
	Arm(w Waker) bool
	// Disarm takes the registration back, or ends the turn that the wake began. The wake may still come once, if it was on
	// its way.
	Disarm(w Waker)
}

// Waker is woken by a Waitable.
type Waker interface {
	Wake() // never blocks (an eventfd write)
}

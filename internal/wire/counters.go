package wire

import "sync/atomic"

// DropReason is the reason why a packet was dropped.
type DropReason uint8

// Reasons to drop a packet.
const (
	DropNone         DropReason = iota
	DropNoBuffer                // the receiver had no buffer or was busy, and the packet could wait no longer
	DropLinkLoss                // lost by Loss, Burst or Drop of an Impairment; a link counts segments
	DropUnknownDst              // there is no other port, or a gateway does not accept the packet
	DropSamePort                // the destination is behind the port that sent it
	DropControlMAC              // its EtherType, source or destination is the control channel's
	DropTooBig                  // too long for the receiver or an incoming uplink; too long or GSO for the control channel
	DropStopped                 // a receiver, its queue, its RDMA or a link is stopped, or a sender or uplink cannot send
	DropFault                   // the packet's memory or a receive buffer cannot be used, for example as it is unmapped
	DropBadFrame                // malformed, too short, with addresses that Identity cannot check, or invalid at an uplink
	DropBadSource               // a multicast source MAC
	DropBadGSO                  // an invalid GSO packet, for example one without a partial checksum
	DropBadCsum                 // a partial checksum that may not be completed, or a wrong checksum at a gateway
	DropDelay                   // dropped from a delay line, or a duplicate that met a busy port
	DropDisabled                // the sending or receiving queue is not enabled, or the receiver has no carrier
	DropUnsplit                 // the receiver has to split the packet, but its buffers do not allow that
	DropSlowReceiver            // for a slow receiver, dropped so that its sender has slots for other receivers' packets
	DropMAC                     // it has a MAC that its port may not use: by Identity, in DHCP at a gateway, at an uplink
	DropAddress                 // it has an IP address that its port may not use (Identity)
	DropLinkQueue               // the queue of a link with a rate was full
	DropStorm                   // to a group address, beyond LinkOptions.Storm
	DropRDMA                    // RoCE: unreadable, malformed, damaged, or to none of the receiver's queue pairs
	NumDropReasons
)

var reasonNames = [NumDropReasons]string{"none", "no-buffer", "link-loss", "unknown-dst", "same-port", "control-mac",
	"too-big", "stopped", "fault", "bad-frame", "bad-source", "bad-gso", "bad-csum", "delay", "disabled", "unsplit",
	"slow-receiver", "mac-not-yours", "address-not-yours",
	"link-queue", "storm", "rdma"}

// String returns the reason's name; "unknown" if r is not one of the reasons above.
func (r DropReason) String() string {
	if r < NumDropReasons {
		return reasonNames[r]
	}
	return "unknown"
}

// Counters are the counters of a link. A packet whose Verdict is Busy does not count as sent, received or dropped, but
// the segments of it that were lost and the pieces that the port took have counted. Corrupted and Marked are counted at
// the receiver's link, at each try to deliver the packet.
type Counters struct {
	Sent             uint64                 `json:"sent"` // packets that Link.Deliver took or dropped, while attached
	SentBytes        uint64                 `json:"sent_bytes"`
	SentSegments     uint64                 `json:"sent_segments"`
	Received         uint64                 `json:"received"` // packets, and pieces of cut ones, that the port took
	ReceivedBytes    uint64                 `json:"received_bytes"`
	ReceivedSegments uint64                 `json:"received_segments"`
	Busy             uint64                 `json:"busy"` // how often a packet or piece met the port without buffers
	Drops            [NumDropReasons]uint64 `json:"-"`
	Held             uint64                 `json:"held"`                 // segments that Impairment.Reorder has held back
	DelayFull        uint64                 `json:"delay_full"`           // segments for Reorder when the line was full
	Duplicated       uint64                 `json:"duplicated,omitempty"` // segments that an Impairment sent twice
	Corrupted        uint64                 `json:"corrupted,omitempty"`  // segments that Impairment.Corrupt selected
	Marked           uint64                 `json:"marked,omitempty"`     // packets that an Impairment marked (ECN)
	NotLearned       uint64                 `json:"not_learned"`          // how often a MAC was not learned: no room
}

type counters struct {
	received, receivedBytes     atomic.Uint64
	receivedMore                atomic.Uint64 // segments beyond one for each received packet; sentMore: likewise
	sent, sentBytes, sentMore   atomic.Uint64
	busy                        atomic.Uint64
	drops                       [NumDropReasons]atomic.Uint64
	held, delayFull, notLearned atomic.Uint64
	duplicated, corrupted       atomic.Uint64
	marked                      atomic.Uint64
}

func (c *counters) load() Counters {
	out := Counters{
		Sent: c.sent.Load(), SentBytes: c.sentBytes.Load(), SentSegments: c.sentMore.Load(),
		Received: c.received.Load(), ReceivedBytes: c.receivedBytes.Load(), ReceivedSegments: c.receivedMore.Load(),
		Busy: c.busy.Load(), Held: c.held.Load(), DelayFull: c.delayFull.Load(), NotLearned: c.notLearned.Load(),
		Duplicated: c.duplicated.Load(), Corrupted: c.corrupted.Load(), Marked: c.marked.Load(),
	}
	out.SentSegments += out.Sent
	out.ReceivedSegments += out.Received
	for i := range c.drops {
		out.Drops[i] = c.drops[i].Load()
	}
	return out
}

func (c *counters) drop(p *Packet, r DropReason) {
	p.Verdict = Drop(r)
	c.dropped(r)
}

func (c *counters) dropAll(run []*Packet, r DropReason) {
	for _, p := range run {
		c.drop(p, r)
	}
}

func (c *counters) dropped(r DropReason) {
	if r >= NumDropReasons {
		r = DropNone
	}
	c.drops[r].Add(1)
}

func (c *counters) sentAll(batch []*Packet) {
	var n, bytes, segments uint64
	for _, p := range batch {
		if p.Verdict.Kind != Busy {
			n++
			bytes += uint64(p.Len())
			segments += uint64(p.Segments())
		}
	}
	if n > 0 {
		c.sent.Add(n)
		c.sentBytes.Add(bytes)
		addMore(&c.sentMore, segments-n)
	}
}

func addMore(c *atomic.Uint64, n uint64) {
	if n > 0 {
		c.Add(n)
	}
}

func (c *counters) deliveredAll(run []*Packet) (v Verdict, busy bool) {
	var n, bytes, segments, waits uint64
	var first *Packet
	for _, p := range run {
		if p.Verdict.Kind == Taken {
			n++
			bytes += uint64(p.Len())
			segments += uint64(p.Segments())
			continue
		}
		switch p.Verdict.Kind {
		case Busy:
			if first == nil {
				first = p
			}
			if p.Verdict.Until == 0 {
				waits++
			}
		case Dropped:
			c.dropped(p.Verdict.Reason)
		default:
			c.drop(p, DropStopped)
		}
	}
	if n > 0 {
		c.received.Add(n)
		c.receivedBytes.Add(bytes)
		addMore(&c.receivedMore, segments-n)
	}
	if waits > 0 {
		c.busy.Add(waits)
	}
	if first == nil {
		return Verdict{}, false
	}
	return first.Verdict, true
}

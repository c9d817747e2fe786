package wire

import "sync/atomic"

// DropReason is the reason why a packet was dropped.
type DropReason uint8

// Reasons to drop a packet.
const (
	DropNone         DropReason = iota
	DropNoBuffer                // the receiver had no buffer
	DropLinkLoss                // lost by an Impairment; counted in segments
	DropUnknownDst              // no port to send it to, or a gateway's filter refused it
	DropSamePort                // the destination is behind the port that sent it
	DropControlMAC              // control EtherType or control MAC
	DropTooBig                  // too long for the receiver, for an uplink by which it came, or for the control channel
	DropStopped                 // the receiver or its link is stopped, or the sender's link or an uplink cannot send
	DropFault                   // the memory of the packet or of its buffers is not mapped, or its file faulted
	DropBadFrame                // malformed, too short, from a sender that Identity cannot find, or refused by an uplink
	DropBadSource               // a multicast source address
	DropBadGSO                  // a GSO packet that contradicts itself
	DropBadCsum                 // a partial checksum that may not be completed, or a wrong one at a gateway
	DropDelay                   // dropped from a delay line, or a duplicate that met a busy port
	DropDisabled                // the sending or receiving queue is not enabled, or the receiver has no carrier
	DropUnsplit                 // the receiver accepts the packet only split
	DropSlowReceiver            // held for a slow receiver, when held frames fill the sender's slots
	DropMAC                     // a sender's MAC in it is not its port's (Identity; DHCP at a gateway; an uplink)
	DropAddress                 // a sender's IP address in it is not its port's (Identity)
	DropLinkQueue               // the queue of a link with a rate was full
	DropStorm                   // to a group address, beyond LinkOptions.Storm
	DropRDMA                    // RoCE: to none of the receiver's queue pairs, or damaged
	NumDropReasons
)

var reasonNames = [NumDropReasons]string{"none", "no-buffer", "link-loss", "unknown-dst", "same-port", "control-mac",
	"too-big", "stopped", "fault", "bad-frame", "bad-source", "bad-gso", "bad-csum", "delay", "disabled", "unsplit",
	"slow-receiver", "mac-not-yours", "address-not-yours",
	"link-queue", "storm", "rdma"}

// String returns the reason's name.
func (r DropReason) String() string {
	if r < NumDropReasons {
		return reasonNames[r]
	}
	return "unknown"
}

// Counters are the counters of a link. A packet is counted as sent, received or dropped when it is finished, not each
// time it meets a busy port. Corrupted and Marked are counted at the receiver's link, at each try.
type Counters struct {
	Sent             uint64                 `json:"sent"` // packets that the port sent, taken or dropped
	SentBytes        uint64                 `json:"sent_bytes"`
	SentSegments     uint64                 `json:"sent_segments"`
	Received         uint64                 `json:"received"` // packets, and pieces of cut ones, that the port took
	ReceivedBytes    uint64                 `json:"received_bytes"`
	ReceivedSegments uint64                 `json:"received_segments"`
	Busy             uint64                 `json:"busy"` // how often a packet met the port without buffers
	Drops            [NumDropReasons]uint64 `json:"-"`
	Held             uint64                 `json:"held"`                 // segments held back in a delay line
	DelayFull        uint64                 `json:"delay_full"`           // segments that a full line did not hold back
	Duplicated       uint64                 `json:"duplicated,omitempty"` // segments that an Impairment sent twice
	Corrupted        uint64                 `json:"corrupted,omitempty"`  // segments that Impairment.Corrupt selected
	Marked           uint64                 `json:"marked,omitempty"`     // packets that an Impairment marked (ECN)
	NotLearned       uint64                 `json:"not_learned"`          // addresses not learned for lack of room
}

type counters struct {
	received, receivedBytes     atomic.Uint64
	receivedMore                atomic.Uint64 // segments beyond one for each packet
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

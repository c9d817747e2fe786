package wire

import "sync/atomic"

// DropReason says why a packet was dropped.
type DropReason uint8

// Reasons to drop a packet.
const (
	DropNone         DropReason = iota
	DropNoBuffer                // the receiver had no buffer, and waiting was not allowed or went on for too long
	DropLinkLoss                // lost by an Impairment; counted by segments
	DropUnknownDst              // no port to give it to
	DropSamePort                // its destination is the port that it came from
	DropControlMAC              // control EtherType or control MAC outside the control channel
	DropTooBig                  // longer than the receiver takes, and not to be cut
	DropStopped                 // the port or its queue is stopped, or the link is detached
	DropFault                   // its memory went away under it
	DropBadFrame                // malformed, too short, lengths that do not fit, or Identity cannot tell whose
	DropBadSource               // a multicast source address
	DropBadGSO                  // a GSO packet that contradicts itself
	DropBadCsum                 // a partial checksum where it would change what is judged, or outside the frame
	DropDelay                   // left in a delay line: its link was detached, or the receiver stayed busy
	DropDisabled                // the receiving queue is not enabled
	DropUnsplit                 // the receiver wanted it split, and it cannot be
	DropSlowReceiver            // frames to a slow receiver held all of a queue's slots
	DropMAC                     // its source MAC, or one that it names as its sender's, is not its port's (Identity)
	DropAddress                 // an IP address that it says is its sender's is not its port's (Identity)
	DropLinkQueue               // the queue of a link with a rate was full
	DropStorm                   // to a group address, beyond what its port may send of these (LinkOptions.Storm)
	DropRDMA                    // to RoCEv2's port of a NIC that has queue pairs, and for none of them, or damaged
	NumDropReasons
)

var reasonNames = [NumDropReasons]string{"none", "no-buffer", "link-loss", "unknown-dst", "same-port", "control-mac",
	"too-big", "stopped", "fault", "bad-frame", "bad-source", "bad-gso", "bad-csum", "delay", "disabled", "unsplit",
	"slow-receiver", "mac-not-yours", "address-not-yours",
	"link-queue", "storm", "rdma"}

// String gives the reason's name in counters.
func (r DropReason) String() string {
	if r < NumDropReasons {
		return reasonNames[r]
	}
	return "unknown"
}

// Counters are a link's, with their keys in the JSON of vnic stat. A packet counts once it is
// disposed of, not when it meets a busy port. What is dropped before its receiver is known counts at
// the sender's link, the rest at the receiver's.
type Counters struct {
	Sent             uint64                 `json:"sent"` // by the port, whatever became of them
	SentBytes        uint64                 `json:"sent_bytes"`
	SentSegments     uint64                 `json:"sent_segments"` // segments lost by Up too
	Received         uint64                 `json:"received"`      // taken by the port; a packet that was cut is several
	ReceivedBytes    uint64                 `json:"received_bytes"`
	ReceivedSegments uint64                 `json:"received_segments"`
	Busy             uint64                 `json:"busy"` // times that the port had no buffers
	Drops            [NumDropReasons]uint64 `json:"-"`
	Held             uint64                 `json:"held"`                 // segments held back in a delay line
	DelayFull        uint64                 `json:"delay_full"`           // segments that a full delay line did not hold back
	Duplicated       uint64                 `json:"duplicated,omitempty"` // segments that an Impairment sent twice
	Corrupted        uint64                 `json:"corrupted,omitempty"`  // segments that an Impairment changed
	Marked           uint64                 `json:"marked,omitempty"`     // segments that an Impairment marked (ECN)
	NotLearned       uint64                 `json:"not_learned"`          // source addresses that did not fit the table
}

// counters are the live ones, written by many workers, a few times a batch.
type counters struct {
	received, receivedBytes     atomic.Uint64
	receivedMore                atomic.Uint64 // segments, beyond one of each packet
	sent, sentBytes, sentMore   atomic.Uint64 // likewise
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

// drop gives a packet its verdict and counts it.
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

// sentAll counts what a port sent, after it has its verdicts.
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

// addMore spares the locked addition where there is nothing to add, as of frames that nobody would cut.
func addMore(c *atomic.Uint64, n uint64) {
	if n > 0 {
		c.Add(n)
	}
}

// deliveredAll counts what a port made of a run, and gives the first busy one's verdict.
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
		default: // a port that forgot it
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

package uplink

import (
	"log/slog"
	"sync/atomic"

	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/wire"
)

// reason is why an uplink itself dropped a frame.
type reason int

const (
	none       reason = iota
	stranger          // a datagram from another address than the peer's
	badHeader         // too short, or without I flag; a virtio_net_hdr that was not offered
	otherVNI          // of another tunnel
	tooLong           // longer than any port of the switch accepts
	badFrame          // too short for a link header
	ourSource         // its source MAC belongs to a port of this switch
	loop              // its source MAC is a NIC's own one: it looped back, or another machine has that MAC
	socketFull        // the socket took nothing, and all buffers were full
	notSent           // the socket refused it
	noPeer            // a listening stream without a connection
	storm             // to a group address, beyond Options.Storm: many machines, or a loop
	numReasons
)

// Loop is the reason, in Stats, of frames from a MAC of this switch's NICs.
const Loop = "loop"

var reasonNames = [numReasons]string{"none", "stranger", "bad-header", "other-vni", "too-long", "bad-frame",
	"our-source", Loop, "socket-full", "not-sent", "no-peer", "storm"}

// counters count drops by reason, and log each reason at most once a second.
type counters struct {
	log    *slog.Logger
	link   *wire.Link // set before the uplink starts
	drops  [numReasons]atomic.Uint64
	limits [numReasons]nic.LogLimit
}

// refuse counts a frame that came in and is not valid, or was not sent. The port's link counts it
// too.
func (c *counters) refuse(why reason, attrs ...any) {
	c.drop(why, attrs...)
	switch why {
	case tooLong:
		c.link.Refuse(wire.DropTooBig)
	case notSent, noPeer:
		c.link.Refuse(wire.DropStopped)
	default:
		c.link.Refuse(wire.DropBadFrame)
	}
}

// drop counts and logs a drop that the link counts itself.
func (c *counters) drop(why reason, attrs ...any) {
	c.drops[why].Add(1)
	level := slog.LevelWarn
	if why == socketFull || why == noPeer { // expected
		level = slog.LevelDebug
	}
	c.limits[why].Log(c.log, level, "frame dropped", append(attrs, "why", reasonNames[why])...)
}

// Stats returns the uplink's own drops by reason. Link.Counters has the drops of the switch and its
// ports, and these.
func (u *Uplink) Stats() map[string]uint64 {
	m := make(map[string]uint64)
	for r := none + 1; r < numReasons; r++ {
		if n := u.count.drops[r].Load(); n > 0 {
			m[reasonNames[r]] = n
		}
	}
	return m
}

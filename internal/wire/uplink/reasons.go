package uplink

import (
	"log/slog"
	"sync/atomic"

	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/wire"
)

// reason says why an uplink itself dropped something.
type reason int

const (
	none       reason = iota
	stranger          // a datagram from another address than the peer's
	badHeader         // short, without its I flag; a virtio_net_hdr that was not offered
	otherVNI          // of another tunnel
	tooLong           // longer than any port of the switch takes
	badFrame          // too short for a link header
	ourSource         // its source MAC is that of a port of ours
	loop              // its source MAC is that of a NIC of ours: it came back, or another machine has that MAC
	socketFull        // the socket took nothing, and all buffers were full
	notSent           // the socket refused it
	noPeer            // of a stream that listens: nobody has connected
	storm             // to a group address, beyond Options.Storm: many machines, or a loop
	numReasons
)

// Loop is the reason, in Stats, of frames of ours that came back.
const Loop = "loop"

var reasonNames = [numReasons]string{"none", "stranger", "bad-header", "other-vni", "too-long", "bad-frame",
	"our-source", Loop, "socket-full", "not-sent", "no-peer", "storm"}

// counters count what was dropped by reason, and log each reason once a second.
type counters struct {
	log    *slog.Logger
	link   *wire.Link // set before anything moves
	drops  [numReasons]atomic.Uint64
	limits [numReasons]nic.LogLimit
}

// refuse counts what came in and is no packet, or was to go out, and did not. The port's link counts it too.
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

// drop counts one, and says so, where the link counts it by itself.
func (c *counters) drop(why reason, attrs ...any) {
	c.drops[why].Add(1)
	level := slog.LevelWarn
	if why == socketFull || why == noPeer { // these are no news
		level = slog.LevelDebug
	}
	c.limits[why].Log(c.log, level, "frame dropped", append(attrs, "why", reasonNames[why])...)
}

// Stats are what an uplink dropped by itself, by reason. What the switch and its ports made of
// frames says Link.Counters, where all of these are too.
func (u *Uplink) Stats() map[string]uint64 {
	m := make(map[string]uint64)
	for r := none + 1; r < numReasons; r++ {
		if n := u.count.drops[r].Load(); n > 0 {
			m[reasonNames[r]] = n
		}
	}
	return m
}

package uplink

import (
	"log/slog"
	"sync/atomic"

	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/wire"
)

type reason int

const (
	none      reason = iota
	stranger         // from another address than the peer's
	badHeader        // a VXLAN header too short or without I flag; a virtio_net_hdr with invalid GSO (readVnet)
	otherVNI
	tooLong    // longer than Options.MTU with link header and two tags
	badFrame   // too short for a link header
	ourSource  // its source MAC belongs to a port of this switch, but is no NIC's own MAC
	loop       // its source MAC is a NIC's own one
	socketFull // the socket took nothing, and no buffer was free for the sending port
	notSent
	noPeer
	storm // to a group address, beyond Options.Storm
	numReasons
)

// Loop is the reason, in Stats, of frames from a MAC of this switch's NICs.
const Loop = "loop"

var reasonNames = [numReasons]string{"none", "stranger", "bad-header", "other-vni", "too-long", "bad-frame",
	"our-source", Loop, "socket-full", "not-sent", "no-peer", "storm"}

// counters count dropped frames by reason, and log at most one line a second for each.
type counters struct {
	log    *slog.Logger
	link   *wire.Link // set before the uplink starts
	drops  [numReasons]atomic.Uint64
	limits [numReasons]nic.LogLimit
}

// refuse counts and logs an invalid incoming frame, or an outgoing one that was not sent, and also counts it at
// the uplink's link.
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

// drop counts and logs a dropped frame, but not at the link.
func (c *counters) drop(why reason, attrs ...any) {
	c.drops[why].Add(1)
	level := slog.LevelWarn
	if why == socketFull || why == noPeer {
		level = slog.LevelDebug
	}
	c.limits[why].Log(c.log, level, "frame dropped", append(attrs, "why", reasonNames[why])...)
}

// Stats returns how many frames the uplink dropped, by reason.
func (u *Uplink) Stats() map[string]uint64 {
	m := make(map[string]uint64)
	for r := none + 1; r < numReasons; r++ {
		if n := u.count.drops[r].Load(); n > 0 {
			m[reasonNames[r]] = n
		}
	}
	return m
}

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
	stranger         // from another IP address than the VXLAN peer's
	badHeader        // a VXLAN header too short or without I flag; a virtio_net_hdr with invalid GSO (readVnet)
	otherVNI
	tooLong    // the frame, or a segment of a tap's GSO packet, is longer than Options.MTU, link header and two tags
	badFrame   // too short for a link header
	ourSource  // another port of this switch owns its source MAC, but the MAC is no NIC's own (checkSource)
	loop       // its source MAC is the own one of a NIC of this switch
	socketFull // outgoing: the socket took nothing, and no buffer was free for the sending port
	notSent
	noPeer
	storm // to a group address, beyond Options.Storm
	numReasons
)

// Loop is the name, in Stats, of the reason that an incoming frame's source is the own MAC of a NIC of this switch.
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

// drop counts and logs a dropped frame, but does not count it at the link.
func (c *counters) drop(why reason, attrs ...any) {
	c.drops[why].Add(1)
	level := slog.LevelWarn
	if why == socketFull || why == noPeer {
		level = slog.LevelDebug
	}
	c.limits[why].Log(c.log, level, "frame dropped", append(attrs, "why", reasonNames[why])...)
}

// Stats returns how many frames the uplink dropped, by the name of the reason, without reasons that have none. Outgoing
// frames that are too long or unreadable, or come after the uplink's end, count only at the link.
func (u *Uplink) Stats() map[string]uint64 {
	m := make(map[string]uint64)
	for r := none + 1; r < numReasons; r++ {
		if n := u.count.drops[r].Load(); n > 0 {
			m[reasonNames[r]] = n
		}
	}
	return m
}

package nic

import (
	"math"
	"time"

	"vnic.dev/vnic/wire"
)

// Bounds of what a Sender knows of its receivers.
const (
	// slowWait is how long in the last second frames to a receiver may have waited before it can be judged slow.
	slowWait = 50 * time.Millisecond
	// maxReceivers are remembered; the one that was seen first is forgotten.
	maxReceivers = 64
	// recent is what is left after a second of one frame that was counted.
	recent = 1 / math.E
)

// receiver is what a Sender knows of one receive queue: what it sent there in the last second, and what became of it.
// The last second is a mean whose weights fall with age, by e in a second: it is three numbers and no list.
type receiver struct {
	queue wire.Waitable
	at    time.Time // the numbers are those of this moment

	sent, taken float64 // frames
	waited      float64 // seconds in which frames to it were held

	newSent, newTaken int       // frames since at: the clock is read only where frames are held
	held              int       // frames
	lastTook          time.Time // frames that were held, the last time
}

// receivers are those of one Sender.
type receivers struct {
	known []*receiver
	last  *receiver   // of the frame before
	busy  []*receiver // frames to them are held
	again bool        // slow may say something else in a while
}

// of gives what is known of a queue.
func (rs *receivers) of(q wire.Waitable, now func() time.Time) *receiver {
	if r := rs.last; r != nil && r.queue == q {
		return r
	}
	for _, r := range rs.known {
		if r.queue == q {
			rs.last = r
			return r
		}
	}
	r := &receiver{queue: q, at: now()}
	if len(rs.known) < maxReceivers {
		rs.known = append(rs.known, r)
	} else {
		rs.forget(r)
	}
	rs.last = r
	return r
}

// forget puts r in the place of the receiver that was counted last the longest ago, and of which nothing is held.
func (rs *receivers) forget(r *receiver) {
	oldest := 0
	for i, k := range rs.known {
		if o := rs.known[oldest]; k.held == 0 && (o.held > 0 || k.at.Before(o.at)) {
			oldest = i
		}
	}
	rs.known[oldest] = r
}

// count notes what became of frames, of which the first old were held before. It is all that is done where no frame is,
// and was, held.
func (rs *receivers) count(frames []*TxFrame, old int, now func() time.Time) (busy int) {
	for i, f := range frames {
		v := &f.Packet.Verdict
		if v.Queue == nil { // dropped, or the wire's own
			continue
		}
		r := rs.of(v.Queue, now)
		if i >= old {
			r.newSent++
		}
		if v.Kind == wire.Busy {
			busy++
		} else {
			r.newTaken++
		}
	}
	return busy
}

// hold brings the numbers to now, and notes of which receivers frames are held from now on.
func (rs *receivers) hold(frames []*TxFrame, now time.Time) {
	for _, r := range rs.busy {
		if r.newTaken > 0 {
			r.lastTook = now
		}
		r.pass(now)
		r.held = 0
	}
	clear(rs.busy)
	rs.busy = rs.busy[:0]
	for _, f := range frames {
		if f.Packet.Verdict.Kind != wire.Busy {
			continue
		}
		// It may have been forgotten since count, for another frame's receiver. One of which frames are held is not.
		r := rs.of(f.Packet.Verdict.Queue, func() time.Time { return now })
		if r.held == 0 {
			r.pass(now)
			rs.busy = append(rs.busy, r)
		}
		r.held++
	}
}

// pass brings a receiver's numbers to now.
func (r *receiver) pass(now time.Time) {
	dt := now.Sub(r.at).Seconds()
	if dt <= 0 {
		return
	}
	left := math.Exp(-dt)
	spread := (1 - left) / dt // what is left of frames that came at any time in dt
	r.sent = r.sent*left + float64(r.newSent)*spread
	r.taken = r.taken*left + float64(r.newTaken)*spread
	r.waited *= left
	if r.held > 0 {
		r.waited += 1 - left
	}
	r.at, r.newSent, r.newTaken = now, 0, 0
}

// slow gives the receiver that is to give up frames when all slots are held, so that frames to others are seen; nil if
// all wait on. It is the one that holds most, if frames to it have waited for more than slowWait in the last second and
// it has taken less than half of what was sent to it. Of the frames that wait in the ring, backlog in number, it gets
// the share that it had of those before. Where frames went to nobody else in that second, nobody is kept waiting.
func (rs *receivers) slow(backlog int, now time.Time) *receiver {
	rs.again = false
	var most *receiver
	for _, r := range rs.busy {
		if most == nil || r.held > most.held {
			most = r
		}
	}
	if most == nil {
		return nil
	}
	all, others := 0.0, false
	for _, r := range rs.known {
		r.pass(now)
		all += r.sent
		others = others || r != most && r.sent >= recent
	}
	offered := most.sent + float64(backlog)*most.sent/all
	if !others {
		return nil
	}
	if most.waited <= slowWait.Seconds() || 2*most.taken >= offered {
		rs.again = true
		return nil
	}
	return most
}

package nic

import (
	"math"
	"slices"
	"time"

	"vnic.dev/vnic/internal/wire"
)

// Parameters by which a Sender finds slow receivers, and the bound of the receivers that it keeps.
const (
	// slowWait is how long frames to a receiver must have waited, in the last second, before the
	// Sender may find that receiver slow.
	slowWait = 50 * time.Millisecond
	// judgeAgain is the interval after which the Sender judges a receiver again that it has not found
	// slow. It is longer than slowWait because the decaying sum of the wait is a bit less than the
	// real time.
	judgeAgain = slowWait * 6 / 5
	// slowRate is the rate, in frames a second, from which on a receiver is never slow, however many
	// frames the Sender has for it: it takes all frames of a ring of 256 within about 50 ms.
	slowRate = 5000
	// slowKeeps is the inverse of a slow receiver's share of the Sender's slots: the receiver keeps
	// one in slowKeeps of the slots, with its newest frames.
	slowKeeps = 8
	// window is the time over which a Sender judges its receivers.
	window = time.Second
	// recent is the number of recent frames from which the Sender estimates the receivers' shares of
	// the frames in the ring.
	recent = 1024
	// The rate of a receiver's frames has risen if surge of them came within about surgeTime.
	surge     = 32
	surgeTime = 10 * time.Millisecond
	// maxReceivers bounds the receivers in memory; a new one replaces the one that was updated
	// longest ago among the receivers without held frames.
	maxReceivers = 64
)

// receiver is a Sender's state for one receive queue: the frames sent to it and taken by it. Rates
// are exponentially weighted sums with a time constant of 1 s.
type receiver struct {
	// The fields used for each frame come first, in one cache line.
	queue             wire.Waitable
	place             int // index in receivers.known
	newSent, newTaken int // frames since updated: the Sender reads the clock only while it holds frames
	held              int // frames that the Sender holds for it

	updated     time.Time // when the sums below were updated
	sent, taken float64   // frames
	waited      float64   // seconds during which the Sender held frames to it
	stuck       float64   // part of waited: at the last look it had most held frames, and the driver's ring was full
	stuckSent   float64   // part of sent: frames sent during stuck

	busy     bool      // it is in receivers.busy
	sticks   bool      // the time since updated counts as stuck
	lastTook time.Time // when it last took frames that were held
	lastSent time.Time // when the Sender last sent frames to it, if within window; else an older time
	mixed    int       // frames to it since the Sender held its first frame; slow halves it above a sum of recent

	fill fill
}

// fill measures the rate at which frames to a receiver filled the ring of the Sender's driver.
type fill struct {
	since time.Time // since when the Sender holds frames to the receiver
	came  int       // frames since then
	rate  float64   // frames a second until the ring was full; 0: the ring has not been full

	lastly time.Time // about surgeTime ago
	there  float64   // frames that had come at lastly
}

// receivers are the receivers of one Sender.
type receivers struct {
	known []*receiver
	index map[wire.Waitable]*receiver // index of known by queue
	last  *receiver                   // receiver of the previous frame
	busy  []*receiver                 // receivers for which the Sender holds frames
	slows *receiver                   // result of the last call of slow
	again bool                        // slow found no slow receiver, but may find one after judgeAgain
}

// find returns the state of a queue. The cost does not depend on the number of receivers: if a
// Sender sends to its receivers in turn, find finds each one behind the previous one in known.
func (rs *receivers) find(q wire.Waitable, now func() time.Time) *receiver {
	if r := rs.last; r != nil && r.queue == q {
		return r
	}
	if rs.last != nil && len(rs.known) > 0 {
		if r := rs.known[(rs.last.place+1)%len(rs.known)]; r.queue == q {
			rs.last = r
			return r
		}
	}
	r := rs.index[q]
	if r == nil {
		r = rs.add()
		*r = receiver{queue: q, place: r.place, updated: now()}
		rs.index[q] = r
	}
	rs.last = r
	return r
}

// add returns a slot for one more receiver: a new slot, or the slot of the receiver updated longest
// ago among the receivers without held frames.
func (rs *receivers) add() *receiver {
	if len(rs.known) < maxReceivers {
		if rs.index == nil {
			rs.index = make(map[wire.Waitable]*receiver)
		}
		rs.known = append(rs.known, &receiver{place: len(rs.known)})
		return rs.known[len(rs.known)-1]
	}
	oldest := 0
	for i, k := range rs.known {
		if o := rs.known[oldest]; k.held == 0 && (o.held > 0 || k.updated.Before(o.updated)) {
			oldest = i
		}
	}
	r := rs.known[oldest]
	delete(rs.index, r.queue)
	return r
}

// count records the verdicts of frames, and returns how many are Busy. The Sender held frames[:old]
// before. While no frame is held, the Sender does no other work for its receivers.
func (rs *receivers) count(frames []*TxFrame, old int, now func() time.Time) (busy int) {
	for i, f := range frames {
		v := &f.Packet.Verdict
		if v.Queue == nil { // a dropped packet, a packet for the wire itself, or one that waits for a link
			if v.Kind == wire.Busy {
				busy++
			}
			continue
		}
		r := rs.find(v.Queue, now)
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

// hold updates all sums to now, and records for which receivers frames are held. The Sender held
// frames[:old] before.
func (rs *receivers) hold(frames []*TxFrame, old int, now time.Time) {
	if len(rs.busy) == 0 {
		rs.begin(frames[old:], now)
	}
	for _, r := range rs.busy {
		if r.newTaken > 0 {
			r.lastTook = now
		}
		r.pass(now)
		r.held, r.sticks = 0, false
	}
	for _, f := range frames {
		if f.Packet.Verdict.Kind != wire.Busy || f.Packet.Verdict.Queue == nil {
			continue
		}
		// A receiver that is not busy may be new here: since count, add may have given its slot to
		// another frame's receiver.
		r := rs.find(f.Packet.Verdict.Queue, func() time.Time { return now })
		if !r.busy {
			r.pass(now)
			r.busy, r.fill = true, fill{since: now, lastly: now}
			rs.busy = append(rs.busy, r)
		}
		r.held++
	}
	rs.busy = slices.DeleteFunc(rs.busy, func(r *receiver) bool {
		r.busy = r.held > 0
		return !r.busy
	})
}

// begin starts the count of frames by receiver (mixed), when the Sender holds its first frame. The
// frames of that frame's batch count as sent now.
func (rs *receivers) begin(batch []*TxFrame, now time.Time) {
	for _, r := range rs.known {
		if now.Sub(r.updated) > time.Millisecond { // otherwise updated is recent enough as the time of its new frames
			r.pass(now)
		}
		r.mixed = -r.newSent // cancels newSent, which pass will add
	}
	for _, f := range batch {
		if q := f.Packet.Verdict.Queue; q != nil {
			r := rs.find(q, func() time.Time { return now })
			r.mixed++
			r.lastSent = now
		}
	}
}

// pass updates a receiver's sums to now.
func (r *receiver) pass(now time.Time) {
	dt := now.Sub(r.updated).Seconds()
	if dt <= 0 {
		return
	}
	if r.newSent > 0 && now.Sub(r.updated) <= window { // otherwise the time at which they were sent is unknown
		r.lastSent = now
	}
	left := math.Exp(-dt)
	spread := (1 - left) / dt // weight of frames spread evenly over dt
	r.sent = r.sent*left + float64(r.newSent)*spread
	r.taken = r.taken*left + float64(r.newTaken)*spread
	r.waited *= left
	r.stuck *= left
	r.stuckSent *= left
	if r.held > 0 {
		r.waited += 1 - left
	}
	if r.sticks {
		r.stuck += 1 - left
		r.stuckSent += float64(r.newSent) * spread
	}
	r.fill.came += r.newSent
	r.mixed += r.newSent
	r.updated, r.newSent, r.newTaken = now, 0, 0
}

// mayBeSlow reports whether the Sender should call slow while frames take all slots: if it holds
// all these frames (all), or if it still holds some for the receiver that slow returned last.
func (rs *receivers) mayBeSlow(all bool) bool { return all || rs.slows != nil && rs.slows.held > 0 }

// slow returns the receiver that has to give up frames, so that frames to others get slots; nil:
// none. This is the receiver with most held frames, if in the last second frames to it have waited
// for more than slowWait, it has taken fewer frames than slowRate and less than half of the frames
// sent to it, and frames went to another receiver. backlog is the number of frames in the ring;
// full means that the ring has no space for the driver.
func (rs *receivers) slow(backlog int, full bool, now time.Time) *receiver {
	rs.slows, rs.again = nil, false
	var most *receiver
	for _, r := range rs.busy {
		if most == nil || r.held > most.held {
			most = r
		}
	}
	if most == nil {
		return nil
	}
	all, waiting := 0, false
	for _, r := range rs.known {
		if now.Sub(r.updated) > time.Millisecond {
			r.pass(now)
		}
		all += r.mixed + r.newSent
		waiting = waiting || r != most && now.Sub(r.lastSent) <= window
	}
	if all > recent {
		for _, r := range rs.known {
			r.mixed /= 2
		}
	}
	share := float64(backlog)
	if all > 0 {
		share *= float64(most.mixed) / float64(all)
	}
	most.fill.note(share, full, now)
	most.sticks = full
	if !waiting {
		return nil
	}
	offered := most.offered(share)
	if most.waited <= slowWait.Seconds() || most.taken >= slowRate || 2*most.taken >= offered {
		rs.again = true
		return nil
	}
	rs.slows = most
	return most
}

// offered returns how many frames came for a receiver in the last second, or would have come if it
// had taken frames faster. share is the number of frames in the ring that go to it. While the ring
// was full the driver waited, and could send no faster than the receiver took: for that time
// offered uses the rate at which the ring was filled, at most twice slowRate.
func (r *receiver) offered(share float64) float64 {
	came := share * math.Exp(-r.updated.Sub(r.fill.since).Seconds()) // decayed like sent
	return r.sent - r.stuckSent + came + max(r.stuckSent, r.stuck*min(r.fill.rate, 2*slowRate))
}

// note sets rate when the ring is full for the first time since the Sender holds frames to the
// receiver. share is the number of frames in the ring that go to the receiver.
func (f *fill) note(share float64, full bool, now time.Time) {
	there := float64(f.came) + share
	if full && f.rate == 0 {
		f.rate = there / max(now.Sub(f.since).Seconds(), 1e-6)
		if n := there - f.there; n >= surge {
			f.rate = max(f.rate, n/max(now.Sub(f.lastly).Seconds(), 1e-6))
		}
	}
	if now.Sub(f.lastly) > surgeTime {
		f.lastly, f.there = now, there
	}
}

// RingFull reports whether a ring with used of its size descriptors in use is as good as full: a
// driver stops sending when the ring has too few free descriptors for its longest frame, and goes
// on when the ring has some more.
func RingFull(used, size int) bool { return 4*used >= 3*size }

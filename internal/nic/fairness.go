package nic

import (
	"math"
	"slices"
	"time"

	"vnic.dev/vnic/internal/wire"
)

// Bounds of what a Sender knows of its receivers, and what it makes of that.
const (
	// slowWait is how long in the last second frames to a receiver may have waited before it can be judged slow.
	slowWait = 50 * time.Millisecond
	// judgeAgain is how long after that was too short it is looked at again; the mean of slowWait is a bit less.
	judgeAgain = slowWait * 6 / 5
	// slowRate is how many frames a receiver takes in a second that is not slow, whatever is sent to it: those that wait
	// in a ring of 256 it takes within 50 ms.
	slowRate = 5000
	// slowKeeps: of the Sender's places a slow receiver keeps one in so many, with the frames that came last.
	slowKeeps = 8
	// window is the time that is judged.
	window = time.Second
	// recent frames tell what waits in the ring.
	recent = 1024
	// surge is how many frames in surgeTime, about, tell of a sender that sends more than it did before.
	surge     = 32
	surgeTime = 10 * time.Millisecond
	// maxReceivers are remembered; the one that was seen first is forgotten.
	maxReceivers = 64
)

// receiver is what a Sender knows of one receive queue: what it sent there in the last second, and what became of it.
// The last second is a mean whose weights fall with age, by e in a second: it is five numbers and no list.
type receiver struct {
	// What is used for each frame comes first, in one cache line.
	queue             wire.Waitable
	place             int // in receivers.known
	newSent, newTaken int // frames since at: the clock is read only where frames are held
	held              int // frames

	at          time.Time // the numbers are those of this moment
	sent, taken float64   // frames
	waited      float64   // seconds in which frames to it were held
	stuck       float64   // of these: in which they had most places, no place was free, and the driver's ring was full
	stuckSent   float64   // frames in that time

	busy     bool      // it is one of the Sender's busy ones
	sticks   bool      // since at
	lastTook time.Time // frames that were held, the last time
	lastSent time.Time // frames, the last time; long ago, if it is not known within window
	mixed    int       // frames to it since any were held, or of the last recent ones to all

	fill fill
}

// fill tells how fast frames to a receiver came as they filled the ring.
type fill struct {
	since time.Time // frames to the receiver are held
	came  int       // frames since then
	rate  float64   // frames a second until the ring was full; 0: it was not

	lastly time.Time // surgeTime ago, about
	there  float64   // frames that had come by then
}

// receivers are those of one Sender.
type receivers struct {
	known []*receiver
	index map[wire.Waitable]*receiver // of known
	last  *receiver                   // of the frame before
	busy  []*receiver                 // frames to them are held
	slows *receiver                   // of slow, the last time
	again bool                        // slow may say something else in a while
}

// of gives what is known of a queue, at the same cost however many are known: a sender that serves its receivers in
// turn finds each behind the one before.
func (rs *receivers) of(q wire.Waitable, now func() time.Time) *receiver {
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
		*r = receiver{queue: q, place: r.place, at: now()}
		rs.index[q] = r
	}
	rs.last = r
	return r
}

// add gives the place for one more receiver: a new one, or of the one that was counted last the longest ago, and of
// which nothing is held.
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
		if o := rs.known[oldest]; k.held == 0 && (o.held > 0 || k.at.Before(o.at)) {
			oldest = i
		}
	}
	r := rs.known[oldest]
	delete(rs.index, r.queue)
	return r
}

// count notes what became of frames, of which the first old were held before. It is all that is done where no frame is,
// and was, held.
func (rs *receivers) count(frames []*TxFrame, old int, now func() time.Time) (busy int) {
	for i, f := range frames {
		v := &f.Packet.Verdict
		if v.Queue == nil { // dropped, the wire's own, or for a link that is taken
			if v.Kind == wire.Busy {
				busy++
			}
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

// hold brings the numbers to now, and notes of which receivers frames are held from now on. The first old frames were
// held before.
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
		// It may have been forgotten since count, for another frame's receiver. One of which frames are held is not.
		r := rs.of(f.Packet.Verdict.Queue, func() time.Time { return now })
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

// begin counts anew which receivers frames go to, from the first that is held on. Those in its batch are of now.
func (rs *receivers) begin(batch []*TxFrame, now time.Time) {
	for _, r := range rs.known {
		if now.Sub(r.at) > time.Millisecond { // else its frames are dated well enough
			r.pass(now)
		}
		r.mixed = -r.newSent // which pass will count
	}
	for _, f := range batch {
		if q := f.Packet.Verdict.Queue; q != nil {
			r := rs.of(q, func() time.Time { return now })
			r.mixed++
			r.lastSent = now
		}
	}
}

// pass brings a receiver's numbers to now.
func (r *receiver) pass(now time.Time) {
	dt := now.Sub(r.at).Seconds()
	if dt <= 0 {
		return
	}
	if r.newSent > 0 && now.Sub(r.at) <= window { // else nobody knows when they were
		r.lastSent = now
	}
	left := math.Exp(-dt)
	spread := (1 - left) / dt // what is left of frames that came at any time in dt
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
	r.at, r.newSent, r.newTaken = now, 0, 0
}

// judges says whether slow is to be asked, where frames take all places: if all of these are held, and from the time on
// at which one was found to be slow, before others have to wait again.
func (rs *receivers) judges(all bool) bool { return all || rs.slows != nil && rs.slows.held > 0 }

// slow gives the receiver that is to give up frames when all slots are held, so that frames to others are seen; nil if
// all wait on. It is the one that holds most, if in the last second frames to it have waited for more than slowWait, it
// has taken fewer than slowRate, and less than half of what was sent to it. Where frames went to nobody else in that
// second, nobody is kept waiting. backlog is how many frames wait in the ring, and full says that the driver has no
// space there for more.
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
	all, others := 0, false
	for _, r := range rs.known {
		if now.Sub(r.at) > time.Millisecond {
			r.pass(now)
		}
		all += r.mixed + r.newSent
		others = others || r != most && now.Sub(r.lastSent) <= window
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
	if !others {
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

// offered is how many frames were sent to a receiver in the last second, or would have been if it had taken them; share
// of those in the ring are to it. While the ring was full the driver waited too, and sent as fast as the receiver took:
// it is presumed to send then as fast as it filled the ring. It makes no difference if it is more than twice slowRate.
func (r *receiver) offered(share float64) float64 {
	came := share * math.Exp(-r.at.Sub(r.fill.since).Seconds()) // in that second
	return r.sent - r.stuckSent + came + max(r.stuckSent, r.stuck*min(r.fill.rate, 2*slowRate))
}

// note takes the rate as the ring turns full for the first time since frames to the receiver are held; share of those
// in the ring are to it.
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

// RingFull says whether a ring of so many descriptors, of which some are used, has no space to speak of: a driver stops
// when it has too few for its longest frame, and goes on when there are some more.
func RingFull(used, size int) bool { return 4*used >= 3*size }

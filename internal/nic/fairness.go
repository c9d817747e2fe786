package nic

import (
	"math"
	"slices"
	"time"

	"vnic.dev/vnic/internal/wire"
)

// Parameters by which a Sender finds slow receivers.
const (
	// slowWait: a receiver is slow only if frames to it were held for longer than this in about the last second.
	slowWait = 50 * time.Millisecond
	// judgeAgain bounds the sleep of a Sender whose slots all have held frames, until it judges the receivers again. It
	// is longer than slowWait because the decaying sum of the wait is less than the real time.
	judgeAgain = slowWait * 6 / 5
	// slowRate is in frames a second: a receiver that takes as many or more is never slow.
	slowRate = 5000
	// slowKeeps is the inverse of the share of the Sender's slots that a slow receiver keeps.
	slowKeeps = 8
	// window is for how long after a frame was sent to a receiver a Sender counts that receiver as one in use.
	window = time.Second
	// recent is about the number of frames from which the Sender estimates the mix of the frames in the ring.
	recent = 1024
	// If at least surge frames came in about surgeTime before the ring was full, fill.rate is their rate, if it is
	// greater than the mean.
	surge        = 32
	surgeTime    = 10 * time.Millisecond
	maxReceivers = 64
)

// receiver is a Sender's state for one receive queue. sent, taken, waited, stuck and stuckSent are exponentially
// weighted sums with a time constant of 1 s, as of updated.
type receiver struct {
	queue             wire.Waitable
	place             int // index in receivers.known
	newSent, newTaken int // frames since updated
	held              int // frames to it that the Sender holds

	updated     time.Time // when the sums were last updated
	sent, taken float64   // frames
	waited      float64   // seconds during which frames to it were held
	stuck       float64   // part of waited: it had most held frames, these filled all slots, and the ring was full
	stuckSent   float64   // frames sent during the time that stuck counts

	busy     bool      // it is in receivers.busy
	sticks   bool      // the time since updated counts as stuck
	lastTook time.Time // when it last took frames while frames to it were held
	lastSent time.Time // about when a frame to it was last sent
	mixed    int       // frames sent to it since the Sender began to hold frames; slow halves it from time to time

	fill fill
}

// fill measures the rate at which frames to a receiver filled the driver's ring, from the time on when the Sender began
// to hold frames for it (since).
type fill struct {
	since time.Time
	came  int     // frames sent to the receiver after since
	rate  float64 // frames a second until the ring was first full; 0: it has not been full after since

	lastly time.Time // a recent time, from which note measures a surge
	there  float64   // frames that had come by lastly, those in the ring included
}

type receivers struct {
	known []*receiver
	index map[wire.Waitable]*receiver
	last  *receiver
	busy  []*receiver // with held frames
	slows *receiver   // the last result of slow
	again bool        // slow found no slow receiver, but may find one after judgeAgain
}

// find returns the state of a queue, and makes it if there is none.
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

// add returns the memory for one more receiver. If there are maxReceivers already, it is that of the one updated
// longest ago of those without held frames, which add removes from the index.
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

// count counts frames by receiver from their Verdicts, and returns how many are Busy. frames[:old] were held before.
func (rs *receivers) count(frames []*TxFrame, old int, now func() time.Time) (busy int) {
	for i, f := range frames {
		v := &f.Packet.Verdict
		if v.Queue == nil { // dropped, taken by something that is no receive queue, or waiting for a link
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

// hold updates the sums of receivers with held frames to the time now, and records for which receivers frames are held.
// frames[:old] were held before.
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
		// The receiver may be new: since count, add may have given its slot to another one.
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

// begin starts to count frames by receiver (mixed) anew. hold calls it if no frames for a receiver were held before.
// batch has the new frames.
func (rs *receivers) begin(batch []*TxFrame, now time.Time) {
	for _, r := range rs.known {
		if now.Sub(r.updated) > time.Millisecond { // otherwise updated is recent enough
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

func (r *receiver) pass(now time.Time) {
	dt := now.Sub(r.updated).Seconds()
	if dt <= 0 {
		return
	}
	if r.newSent > 0 && now.Sub(r.updated) <= window { // otherwise it is unknown when they were sent
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

// mayBeSlow reports whether to call slow, if held and new frames fill all slots. all: all of these are Busy.
func (rs *receivers) mayBeSlow(all bool) bool { return all || rs.slows != nil && rs.slows.held > 0 }

// slow returns the receiver to which the Sender is to drop frames, so that frames to others get slots; nil: none.
// backlog is the number of frames in the ring; full: the driver has hardly any space in the ring (RingFull), and held
// frames fill all slots.
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

// offered estimates how many frames came for a receiver in the last second, or would have come if it had taken
// frames faster. share is its number of frames in the ring. While the ring was full the driver waited: for that
// time offered uses the rate at which the ring was filled, but at most 2*slowRate, or the frames sent, if more.
func (r *receiver) offered(share float64) float64 {
	came := share * math.Exp(-r.updated.Sub(r.fill.since).Seconds()) // decayed like sent
	return r.sent - r.stuckSent + came + max(r.stuckSent, r.stuck*min(r.fill.rate, 2*slowRate))
}

// note sets rate when the ring is full for the first time after since. share is the receiver's number of frames in the
// ring. note sets lastly and there anew if lastly is more than surgeTime ago.
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

// RingFull reports whether a ring is as good as full for its driver: at least three quarters of its size descriptors
// are used.
func RingFull(used, size int) bool { return 4*used >= 3*size }

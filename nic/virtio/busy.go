package virtio

import (
	"sync/atomic"
	"time"

	"vnic.dev/vnic/wire"
)

const (
	// txPatience is how long a frame waits for a receiver without buffers before it is dropped.
	txPatience = 500 * time.Millisecond
	// txGrudge is how long after that frames to the same receiver are not waited for at all, unless it gets buffers
	// before; it doubles each time, up to maxGrudge.
	txGrudge  = 2 * time.Second
	maxGrudge = 32 * time.Second
)

// grudge is held against a receiver that was waited for in vain: a dead guest must not stall frames to others again and
// again. It ends as soon as the receiver gets buffers.
type grudge struct {
	queue wire.Waitable // nil: none
	until time.Time     // the next frame is waited for again
	span  time.Duration
	eased atomic.Bool // the receiver got buffers
}

// Wake implements wire.Waker, on any goroutine.
func (g *grudge) Wake() { g.eased.Store(true) }

// worthWaiting says whether a frame that met a busy receiver is to wait on.
func (q *txQueue) worthWaiting(s *txSlot, now time.Time) bool {
	w := s.pkt.Verdict.Queue
	g := q.grudgeOn(w)
	if g != nil && g.eased.Load() {
		q.forgive(g)
		g = nil
	}
	if g != nil && now.Before(g.until) {
		return false
	}
	if now.Sub(s.since) < txPatience {
		return true
	}
	q.resent(g, w, now)
	return false
}

func (q *txQueue) grudgeOn(w wire.Waitable) *grudge {
	for i := range q.grudges {
		if g := &q.grudges[i]; g.queue == w {
			return g
		}
	}
	return nil
}

// resent begins a grudge, or one more span of g.
func (q *txQueue) resent(g *grudge, w wire.Waitable, now time.Time) {
	if g != nil {
		g.span = min(2*g.span, maxGrudge)
		g.until = now.Add(g.span)
		return
	}
	g = &q.grudges[0] // a free one, else that which ends first
	for i := range q.grudges {
		if o := &q.grudges[i]; o.queue == nil || g.queue != nil && o.until.Before(g.until) {
			g = o
		}
	}
	q.forgive(g)
	g.eased.Store(false)
	if w.Arm(g) {
		g.queue, g.span, g.until = w, txGrudge, now.Add(txGrudge)
	}
}

func (q *txQueue) forgive(g *grudge) {
	if g.queue != nil {
		g.queue.Disarm(g)
		g.queue = nil
	}
}

func (q *txQueue) forgiveAll() {
	for i := range q.grudges {
		q.forgive(&q.grudges[i])
	}
}

// waitBusy sleeps until a receiver of held frames has buffers, the driver has more frames and we have room for them, or
// patience ends.
func (q *txQueue) waitBusy() error {
	q.waits.add(1)
	oldest := q.slots[0].since
	armed := 0
	var last wire.Waitable
	defer func() {
		for _, w := range q.busy[:armed] {
			w.Disarm(q.wake)
		}
		clear(q.busy[:armed])
	}()
	for _, s := range q.slots[:q.used] {
		if s.since.Before(oldest) {
			oldest = s.since
		}
		w := s.pkt.Verdict.Queue
		if w == last {
			continue
		}
		if !w.Arm(q.wake) {
			return nil
		}
		last = w
		q.busy[armed] = w
		armed++
	}
	if q.used < txBatch && q.vq.EnableKick() {
		q.vq.DisableKick()
		return nil
	}
	_, err := q.sleep(q.wake.fd, q.kick, max(0, txPatience-time.Since(oldest)))
	q.vq.DisableKick()
	return err
}

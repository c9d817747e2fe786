package capture

import (
	"math"
	"sync/atomic"
	"time"

	"vnic.dev/vnic/internal/wire"
)

// iface is one direction of a port, an interface in the file.
type iface struct {
	id       int
	name     string
	about    string
	rx       bool          // packets that come for the port; false: packets that it sends
	seen     atomic.Uint64 // frames that passed; with Options.Once a received frame may count only at its sender
	missed   atomic.Uint64 // part of seen
	reported uint64        // how much of missed is in the file; only the writer uses it
}

type tap struct {
	c      *Capture
	link   *wire.Link
	tx, rx *iface
}

// Sending implements wire.Tap.
func (t *tap) Sending(p *wire.Packet) (mark uint64) {
	if r := t.c.reserve(); r != nil {
		if t.c.once {
			r.origin.Store(p)
		}
		return r.index + 1
	}
	return notCaptured
}

// notCaptured is the mark of a packet without a record.
const notCaptured = math.MaxUint64

// Sent implements wire.Tap.
func (t *tap) Sent(w *wire.Worker, p *wire.Packet, mark uint64) {
	busy := p.Verdict.Kind == wire.Busy
	if !busy {
		t.tx.seen.Add(1)
	}
	if mark == notCaptured {
		if !busy {
			t.tx.missed.Add(1)
		}
		return
	}
	r := t.c.ring.reserved(mark - 1)
	r.origin.Store(nil)
	if r.iface = nil; !busy {
		r.iface = t.tx
		r.frame(w, p, p.Payload, t.c.payload)
		r.loss(t.link, p)
	}
	t.c.commit(r)
}

// Received implements wire.Tap.
func (t *tap) Received(w *wire.Worker, p *wire.Packet, place wire.Placement) {
	if t.c.once {
		// If the record's origin is this packet, only this goroutine uses the record until Sent.
		switch o, mark := p.Origin(); mark {
		case 0: // a link has delayed it, or no captured port has sent it
		case notCaptured:
			return
		default:
			if r := t.c.ring.reserved(mark - 1); r.origin.Load() == o {
				r.arrived(t.rx, p, &place)
				return
			}
		}
	}
	t.rx.seen.Add(1)
	r := t.c.reserve()
	if r == nil {
		t.rx.missed.Add(1)
		return
	}
	r.iface = t.rx
	segs := place.Payload
	if segs == nil {
		segs = p.Payload // the payload is still at its source
	}
	r.frame(w, p, segs, t.c.payload)
	if place.Payload == nil && p.Verdict.Kind == wire.Taken {
		r.places.set(nil, 0) // only its port knows where the payload is
	}
	r.queue, r.split, r.header, r.unsplit = place.Queue, place.Split, place.HeaderLen, place.Unsplit
	r.merged, r.bounced = place.Merged, place.Bounced
	t.c.commit(r)
}

func (c *Capture) reserve() *record {
	if c.broken.Load() {
		return nil
	}
	r := c.ring.reserve()
	if r != nil {
		r.when = time.Now().UnixNano()
		r.nEnds, r.more, r.taken.n, r.taken.more = 0, 0, 0, 0
	}
	return r
}

// commit passes a record to the writer, and wakes the writer if it sleeps. commit never blocks.
func (c *Capture) commit(r *record) {
	r.commit()
	if c.asleep.Load() && c.asleep.CompareAndSwap(true, false) {
		c.wake()
	}
}

func (c *Capture) wake() {
	select {
	case c.kick <- struct{}{}:
	default:
	}
}

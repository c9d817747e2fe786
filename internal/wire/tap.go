package wire

import "vnic.dev/vnic/dma"

// Tap sees what a port sends and receives. It is called on the fast path, by many workers at once,
// Received even under a receive queue's lock: it never waits, and keeps nothing of what it is
// shown.
type Tap interface {
	// Sending tells of a packet before anything becomes of it, so that a tap knows in which order things began. The mark
	// that it returns comes back with Sent.
	Sending(p *Packet) (mark uint64)
	// Sent tells what became of it. Of a packet whose Verdict is Busy nothing did: it will be sent again.
	Sent(w *Worker, p *Packet, mark uint64)
	// Received tells of a packet that came for the port, which took or dropped it: Verdict is one of these two. What was
	// cut comes as its pieces.
	Received(w *Worker, p *Packet, at Placement)
}

// Placement is where a receiving port has put a packet. Of one that was dropped it is nowhere.
type Placement struct {
	Queue     int           // receive queue; -1: none
	Split     bool          // headers lie apart from the payload
	HeaderLen uint32        // if Split: bytes of the frame in the header buffer
	Unsplit   bool          // it should have been split, and could not be
	Merged    bool          // the guest gets it as part of a GSO packet made of several: HeaderLen is 0 but in the first
	Bounced   bool          // the payload went through host memory, as the NIC cannot reach the GPU
	Payload   []dma.Segment // where the payload lies now; nil: not known
}

// Nowhere is the Placement of a packet that was dropped, and of one that lies where only its port knows.
var Nowhere = Placement{Queue: -1}

// PlacementReporter is a Port that itself tells its link's tap what it received, as it knows where that lies.
// For all other ports the link does so.
type PlacementReporter interface {
	Port
	ReportsPlacement()
}

// SetTap sets the link's tap; nil takes it away. Workers that are on their way may still call the one before.
func (l *Link) SetTap(t Tap) {
	if t == nil {
		l.tap.Store(nil)
		return
	}
	l.tap.Store(&t)
}

// Tap gives the link's tap, nil if there is none.
func (l *Link) Tap() Tap {
	if t := l.tap.Load(); t != nil {
		return *t
	}
	return nil
}

// sending tells a tap of a batch that begins.
func sending(t Tap, batch []*Packet) {
	for _, p := range batch {
		p.mark = t.Sending(p)
	}
}

func sent(t Tap, w *Worker, batch []*Packet) {
	for _, p := range batch {
		t.Sent(w, p, p.mark)
	}
}

// GaveUp tells the tap of a packet that the port itself has dropped on its way to Deliver, or after
// it was Busy, and counts it. The packet's payload may be out of reach by then: where it lay is not told.
func (l *Link) GaveUp(w *Worker, p *Packet, r DropReason) {
	l.count.dropped(r)
	t := l.Tap()
	if t == nil {
		return
	}
	q := &w.gone
	*q = *p
	q.Payload, q.Verdict = nil, Drop(r)
	t.Sent(w, q, t.Sending(q))
	*q = Packet{}
}

// Discarded counts a frame that the port has dropped before it was a packet, so that there is nothing to tell the tap.
func (l *Link) Discarded(r DropReason) { l.count.dropped(r) }

// missed tells the tap of a packet that was lost on its way down the link. It changes the Verdict.
func (l *Link) missed(w *Worker, p *Packet, r DropReason) {
	if t := l.Tap(); t != nil {
		p.Verdict = Drop(r)
		t.Received(w, p, Nowhere)
	}
}

// arrived tells the tap what the port made of a run, unless the port does.
func (l *Link) arrived(w *Worker, run []*Packet) {
	t := l.Tap()
	if t == nil || l.places {
		return
	}
	for _, p := range run {
		if p.Verdict.Kind == Taken || p.Verdict.Kind == Dropped {
			t.Received(w, p, Nowhere)
		}
	}
}

// Origin gives the packet that a packet was cut from, itself if it was not, with the mark that the tap of that one's
// sender had returned. That tap may have been taken away since, and another packet may have the mark. It is for taps,
// while they are told that the packet was received.
func (p *Packet) Origin() (o *Packet, mark uint64) {
	if p.origin != nil {
		p = p.origin
	}
	return p, p.mark
}

// Held says how many segments of a packet the link held back as the port sent them; they come
// later. It is for taps, as Lost is.
func (p *Packet) Held() int { return int(p.Progress.level[levelUp].held) }

// Lost gives the first run of segments of a packet, from segment number from on, that the link lost
// as the port sent them: segments [first, first+n). n is 0 if there is none. It is for taps, while
// they are told of the packet.
func (l *Link) Lost(p *Packet, from uint32) (first, n uint32) {
	at := &p.Progress.level[levelUp]
	up := l.up.Load()
	if up == nil || !at.known {
		return 0, 0
	}
	c := up.now.Load()
	for i, all := from, p.Segments(); i < all; i++ {
		f, _ := c.fateOf(p, at.seq+uint64(i))
		if f == lost || i < 8*maxNoted && p.Progress.dropped[i/64]&(1<<(i%64)) != 0 {
			if n == 0 {
				first = i
			}
			n++
		} else if n > 0 {
			break
		}
	}
	return first, n
}

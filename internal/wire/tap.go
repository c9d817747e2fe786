package wire

import "vnic.dev/vnic/dma"

// Tap observes the packets that a port sends and receives. Several workers may call it at the same time, Received even
// under a receive queue's lock: it must not wait, or keep its arguments.
type Tap interface {
	// Sending is called at each try to send a packet, before the link does anything with it. The link passes the returned
	// mark to Sent.
	Sending(p *Packet) (mark uint64)
	// Sent is called when the packet has its Verdict of this try, which may be Busy.
	Sent(w *Worker, p *Packet, mark uint64)
	// Received is called for each packet, or piece of a cut one, that the port has taken or dropped (Verdict), that was
	// lost on the way to the port (DropLinkLoss), or that a flood did not deliver because the port was busy
	// (DropNoBuffer). It is not called for packets that the link drops for other reasons.
	Received(w *Worker, p *Packet, place Placement)
}

// Placement is where a receiving port has put a packet, or was to put one that it dropped.
type Placement struct {
	Queue     int           // receive queue; -1: none
	Split     bool          // the headers of TCP, or the whole of another frame, are in a header buffer
	HeaderLen uint32        // if Split: bytes of the frame in the header buffer; see Merged
	Unsplit   bool          // the packet should have been split, but could not be
	Merged    bool          // merged with other packets: HeaderLen is 0 except for the first one
	Bounced   bool          // the payload went to GPU memory through host memory
	Payload   []dma.Segment // where the payload lies; nil: unknown, or the packet was dropped
}

// Nowhere is a Placement without queue and place, such as that of a packet that was dropped before it reached a
// queue, or whose place only its port knows.
var Nowhere = Placement{Queue: -1}

// PlacementReporter is a Port that itself calls Received of its link's tap for the packets that its Deliver takes or
// drops.
type PlacementReporter interface {
	Port
	ReportsPlacement()
}

// SetTap sets the link's tap; nil removes it. Workers that are sending or delivering may still call the old tap.
func (l *Link) SetTap(t Tap) {
	if t == nil {
		l.tap.Store(nil)
		return
	}
	l.tap.Store(&t)
}

// Tap returns the link's tap; nil: none.
func (l *Link) Tap() Tap {
	if t := l.tap.Load(); t != nil {
		return *t
	}
	return nil
}

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

// GaveUp counts a packet that the port was to send and has dropped itself, and reports it to the tap (Sending, Sent),
// without its payload, because the payload may be unreachable by then.
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

// missed reports to the tap, if there is one, a packet that was lost on its way to the port, and sets the packet's
// Verdict then.
func (l *Link) missed(w *Worker, p *Packet, r DropReason) {
	if t := l.Tap(); t != nil {
		p.Verdict = Drop(r)
		t.Received(w, p, Nowhere)
	}
}

// arrived reports the packets of a run that are Taken or Dropped to the tap, unless the port does so itself.
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

// Origin returns the packet from which p was cut or copied, or p itself, and the mark that the sending link's tap gave
// that packet. A packet from a delay line is its own origin, with mark 0. Origin is for Tap.Received.
func (p *Packet) Origin() (o *Packet, mark uint64) {
	if p.origin != nil {
		p = p.origin
	}
	return p, p.mark
}

// Held returns how many segments of a packet the sender's link has held back (Impairment.Reorder). It is for Tap.Sent.
func (p *Packet) Held() int { return int(p.Progress.level[levelUp].held) }

// Lost returns the first run of segments of a packet, from segment from on, that l, the sender's link, loses by its
// present impairment (DropLinkLoss): [first, first+n); n is 0 if there is none. Of the segments lost by
// Impairment.Drop it finds only those among the first 8*maxNoted of the packet. It is for Tap.Sent.
func (l *Link) Lost(p *Packet, from uint32) (first, n uint32) {
	state := &p.Progress.level[levelUp]
	up := l.up.Load()
	if up == nil || !state.known {
		return 0, 0
	}
	c := up.now.Load()
	for i, all := from, p.Segments(); i < all; i++ {
		f, _ := c.fateOf(p, state.seq+uint64(i))
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

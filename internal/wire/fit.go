package wire

import "vnic.dev/vnic/splitter"

// fit delivers a run of packets to the link's port, if necessary altered, segmented or completed, or drops them. Once
// one is Busy, packets that fit has not yet passed to the port become Busy too, unless the worker floods. The caller
// has entered the link.
func (l *Link) fit(w *Worker, run []*Packet) {
	lim := l.port.Limits()
	for len(run) > 0 {
		n := 0
		for n < len(run) && run[n].fault.kind == passes && lim.takes(run[n]) && !run[n].begun(l) {
			n++
		}
		if n > 0 {
			if v, busy := l.deliver(w, run[:n]); busy {
				w.setBusy(l, v)
			}
		} else if run[0].fault.kind != passes {
			l.alter(w, run[0])
			n = 1
		} else {
			l.cut(w, &lim, run[0])
			n = 1
		}
		run = run[n:]
		if v, busy := w.busyWith(l); busy && len(run) > 0 {
			setAll(run, v)
			return
		}
	}
}

// deliver calls the port's Deliver, counts the packets and, unless the port does so itself, reports them to the tap. It
// returns the first Busy verdict; busy is false if there is none.
func (l *Link) deliver(w *Worker, run []*Packet) (v Verdict, busy bool) {
	l.port.Deliver(w, run)
	v, busy = l.count.deliveredAll(run)
	l.arrived(w, run)
	return v, busy
}

func (p *Packet) begun(l *Link) bool {
	return p.Progress.begun && p.Progress.level[levelFit].done != 0 && p.Progress.link == l.serial
}

// levelOn returns the packet's progress on level lv (levelDown or levelFit) of link l. It first clears the progress on
// both levels if that is another link's.
func (p *Packet) levelOn(lv int, l *Link) *level {
	p.Progress.begun = true
	if p.Progress.link != l.serial {
		p.Progress.link, p.Progress.arrives = l.serial, 0
		p.Progress.level[levelDown], p.Progress.level[levelFit] = level{}, level{}
	}
	return &p.Progress.level[lv]
}

// cut delivers one packet that the port does not accept as it is, or the rest of one that it took in part: in pieces,
// or with its checksum completed. It drops a packet, or its rest, that it cannot deliver so.
func (l *Link) cut(w *Worker, lim *Limits, p *Packet) {
	state := p.levelOn(levelFit, l)
	if p.Meta.GSOType == splitter.GSONone {
		l.complete(w, lim, p)
		return
	}
	s := &w.cutter
	if s.Init(p.Header, &p.Meta, p.PayloadLen) != nil {
		l.count.drop(p, DropBadGSO)
		return
	}
	hdr, mss := uint32(len(p.Header)), s.MSS()
	if !lim.fits(&p.Meta.Headers, hdr+min(mss, p.PayloadLen)) { // a single segment may be shorter than the MSS
		l.count.drop(p, DropTooBig)
		return
	}
	super := mss // most payload bytes of a piece
	if lim.Csum && lim.GSO.Has(p.Meta.GSOType) {
		super = p.PayloadLen
		if room := lim.MaxBytes; room != 0 && super > room-min(room, hdr) {
			super = max((room-min(room, hdr))/mss, 1) * mss
		}
	}
	from := cursor{segs: p.Payload}
	from.skip(state.done)
	var took Waitable
	for {
		n, end, reason := 0, state.done, DropNone
		for ; n < maxPieces && (end < p.PayloadLen || p.PayloadLen == 0 && n == 0); n++ {
			size := min(super, p.PayloadLen-end)
			if end == 0 && !lim.ECN && cwr(&p.Meta) {
				size = min(mss, p.PayloadLen) // without lim.ECN, the segment with CWR goes alone
			}
			x := &w.pieces[n]
			if reason = x.cut(s, p, &from, end, size); reason == DropNone && !lim.Csum {
				reason = x.finish(w)
			}
			if reason != DropNone {
				break
			}
			if n == 0 {
				*x.Progress.Arrives(), p.Progress.arrives = p.Progress.arrives, 0
			}
			end += size
		}
		if n > 0 {
			w.cutting = true
			v, _ := l.deliver(w, w.run[:n])
			w.cutting = false
			for i := range n {
				switch w.pieces[i].Verdict.Kind {
				case Busy:
					w.setBusy(l, v)
					p.Verdict, p.Progress.arrives = v, w.pieces[i].Progress.arrives
					return
				case Taken:
					state.taken, took = true, w.pieces[i].Verdict.Queue
				default:
					p.Verdict = w.pieces[i].Verdict
				}
				state.done += w.pieces[i].PayloadLen
			}
		}
		if reason != DropNone {
			l.count.drop(p, reason) // counts one drop for the rest of the packet
		}
		if reason != DropNone || end >= p.PayloadLen {
			break
		}
	}
	if state.taken {
		p.Verdict = Verdict{Kind: Taken, Queue: took}
	}
}

// complete completes the checksum of a frame that is not a GSO packet, and delivers a copy of the frame, or drops the
// frame if it is too long or invalid.
func (l *Link) complete(w *Worker, lim *Limits, p *Packet) {
	if !lim.fits(&p.Meta.Headers, p.Len()) {
		l.count.drop(p, DropTooBig)
		return
	}
	x := &w.pieces[0]
	if w.cutter.Init(p.Header, &p.Meta, p.PayloadLen) != nil {
		l.count.drop(p, DropBadFrame)
		return
	}
	all := cursor{segs: p.Payload}
	reason := x.cut(&w.cutter, p, &all, 0, p.PayloadLen)
	*x.Progress.Arrives() = p.Progress.arrives
	if reason == DropNone {
		reason = x.finish(w)
	}
	if reason != DropNone {
		l.count.drop(p, reason)
		return
	}
	if v, busy := l.deliver(w, w.run[:1]); busy {
		w.setBusy(l, v)
	}
	p.Verdict, *p.Progress.Arrives() = x.Verdict, x.Progress.arrives
}

package wire

import (
	"sync"
	"sync/atomic"

	"vnic.dev/vnic/splitter"
)

// LinkOptions configure a port's link.
type LinkOptions struct {
	Up   Impairment
	Down Impairment
	// Identity restricts the source addresses of the port's frames. If it is nil or has Router set, they may have any,
	// except ControlMAC and group MACs.
	Identity *Identity
	// Storm is how many packets to group addresses the port may send a second, on average; 0: any number. A GSO packet
	// counts as one.
	Storm int
}

// Link connects a port to the switch.
type Link struct {
	// Workers read these fields for each run of packets; they lie beside the counters of received packets.
	port Port
	down atomic.Pointer[impaired]
	tap  atomic.Pointer[Tap] // nil: none
	// inside counts the workers between enter and leave; drain adds the constant closed to it.
	inside atomic.Int64
	count  counters

	sw      *Switch
	id      uint16 // the link's index in the switch's tables, while attached
	serial  uint32
	up      atomic.Pointer[impaired]
	places  bool
	who     *identity // nil: LinkOptions.Identity is nil
	storm   storm
	drained chan struct{} // capacity 1: leave signals that no worker is inside
	detach  sync.Once
}

// closed is so large that enter refuses workers once drain has added it to Link.inside.
const closed = 1 << 62

// enter counts a worker that is going to send from the link's port or deliver to it. It returns false, and counts no
// worker, once drain has begun.
func (l *Link) enter() bool {
	if l.inside.Add(1) < closed {
		return true
	}
	l.leave()
	return false
}

func (l *Link) leave() {
	if l.inside.Add(-1) == closed {
		signal(l.drained)
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// drain makes enter return false from now on, and waits for the workers inside.
func (l *Link) drain() {
	if l.inside.Add(closed) == closed {
		return
	}
	<-l.drained
	for l.inside.Load() != closed {
		<-l.drained
	}
}

// Name returns the port's name.
func (l *Link) Name() string { return l.port.Name() }

// Serial returns the link's number, by which receivers identify the sender of a packet (Packet.From). It is
// never 0, and no two links of a switch have the same one.
func (l *Link) Serial() uint32 { return l.serial }

// Restarted notifies the RestartObservers among the switch's other ports: the machine behind this link's port
// has lost its connections or is gone.
func (l *Link) Restarted() {
	for _, o := range l.sw.ports.Load().list {
		if p, ok := o.port.(RestartObserver); ok && o != l {
			p.PortRestarted(l)
		}
	}
}

// Port returns the port.
func (l *Link) Port() Port { return l.port }

// Counters reads the link's counters.
func (l *Link) Counters() Counters { return l.count.load() }

// Deliver sends a batch of the port's packets and sets every Verdict: Taken, Dropped or Busy. It does not wait for
// receivers. The link drops the packets if it is detached (DropStopped).
func (l *Link) Deliver(w *Worker, batch []*Packet) {
	if !l.enter() {
		l.count.dropAll(batch, DropStopped)
		return
	}
	defer l.leave()
	w.busy = w.busy[:0]
	tap := l.Tap()
	if tap != nil {
		sending(tap, batch)
	}
	if up := l.up.Load(); up != nil {
		up.pass(w, batch)
	} else {
		l.forward(w, batch)
	}
	l.count.sentAll(batch)
	if tap != nil {
		sent(tap, w, batch)
	}
}

// forward checks packets that came from the port, and switches or drops them. It passes on successive packets for one
// link together.
func (l *Link) forward(w *Worker, batch []*Packet) {
	ports := l.sw.ports.Load()
	var src, dst MAC  // addresses looked up last
	var to, run *Link // to: the link of dst; run: the link for batch[start:i]; allLinks: flood them
	start := 0
	checked := l.checked()
	var before *Packet
	for i, p := range batch {
		p.From = l.serial
		r := admit(p)
		if checked && r == DropNone && (before == nil || !sameSource(p, before)) {
			if before = p; !l.who.passes(p) {
				before, r = nil, unchecked
			}
		}
		if r != DropNone {
			l.send(w, ports, run, batch[start:i])
			l.forwardAlone(w, ports, batch[i:i+1], r)
			run, start = nil, i+1
			continue
		}
		if p.Src != src || to == nil {
			src = p.Src
			if !l.sw.table.learn(src.key(), l.id) {
				l.count.notLearned.Add(1)
			}
		}
		if p.Dst != dst || to == nil {
			dst = p.Dst
			to = l.sw.find(ports, dst)
		}
		if to == allLinks && dst.multicast() && !l.storm.pass() {
			l.send(w, ports, run, batch[start:i])
			l.count.drop(p, DropStorm)
			run, start = nil, i+1
			continue
		}
		if to != run {
			l.send(w, ports, run, batch[start:i])
			run, start = to, i
		}
	}
	l.send(w, ports, run, batch[start:])
}

// forwardAlone drops a packet for reason r, unless r is unplaced or unchecked. It completes the checksum of an unplaced
// packet. Then it checks the source, if the link checks sources, and switches the packet. If a step fails, it drops the
// packet.
func (l *Link) forwardAlone(w *Worker, ports *ports, one []*Packet, r DropReason) {
	p := one[0]
	q := p
	if r == unplaced {
		q, r = &w.whole.Packet, w.completed(p)
	} else if r == unchecked {
		r = DropNone
	}
	if r == DropNone && l.checked() {
		q, r = l.checkSource(w, q)
	}
	if r != DropNone {
		l.count.drop(p, r)
		return
	}
	if q != p {
		one = w.wholeRun[:]
	}
	if !l.sw.table.learn(q.Src.key(), l.id) {
		l.count.notLearned.Add(1)
	}
	if q.Dst.multicast() && !l.storm.pass() {
		l.count.drop(p, DropStorm)
		return
	}
	l.send(w, ports, l.sw.find(ports, q.Dst), one)
	if q != p {
		p.Verdict, p.Progress = q.Verdict, q.Progress
	}
}

func (l *Link) send(w *Worker, ports *ports, to *Link, run []*Packet) {
	switch {
	case len(run) == 0:
	case to == allLinks:
		l.flood(w, ports, run)
	case to == l:
		l.count.dropAll(run, DropSamePort)
	default:
		if v, busy := w.busyWith(to); busy {
			setAll(run, v)
		} else if !to.receive(w, run) {
			l.count.dropAll(run, DropStopped)
		}
	}
}

func (l *Link) receive(w *Worker, run []*Packet) bool {
	if !l.enter() {
		return false
	}
	defer l.leave()
	if down := l.down.Load(); down != nil {
		down.pass(w, run)
	} else {
		l.fit(w, run)
	}
	return true
}

// flood sends packets to all links but l. A port for which a packet is Busy misses it, or the rest of it.
func (l *Link) flood(w *Worker, ports *ports, run []*Packet) {
	w.flooding = true
	defer func() { w.flooding = false }()
	for _, p := range run {
		p.taken, p.reason = false, DropNone
	}
	for _, to := range ports.list {
		if to == l {
			continue
		}
		for _, p := range run {
			p.Verdict, p.Progress.link, p.Progress.arrives = Verdict{}, 0, 0
		}
		if !to.receive(w, run) {
			continue
		}
		for _, p := range run {
			switch p.Verdict.Kind {
			case Taken:
				p.taken = true
			case Busy:
				to.count.dropped(DropNoBuffer)
				to.missed(w, p, DropNoBuffer)
				p.reason = DropNoBuffer
			default:
				p.reason = p.Verdict.Reason
			}
		}
	}
	for _, p := range run {
		switch {
		case p.taken:
			p.Verdict = Verdict{Kind: Taken}
		case p.reason == DropNone:
			l.count.drop(p, DropUnknownDst)
		default:
			p.Verdict = Drop(p.reason)
		}
	}
}

// admit returns why a packet may not pass the wire, unplaced for a packet whose checksum has to be completed
// first, or DropNone.
func admit(p *Packet) DropReason {
	h := &p.Meta.Headers
	if len(p.Header) < splitter.EthLen {
		return DropBadFrame
	}
	if h.EtherType == EtherTypeControl || p.Header[12] == EtherTypeControl>>8 && p.Header[13] == EtherTypeControl&0xff ||
		p.Dst == ControlMAC || p.Src == ControlMAC {
		return DropControlMAC
	}
	if p.Src.multicast() {
		return DropBadSource
	}
	if (h.Class == splitter.TCP || h.Class == splitter.UDP) && (len(p.Header) != int(h.HdrLen) || p.Len() < h.FrameLen) {
		return DropBadFrame
	}
	if p.Meta.Csum == splitter.CsumPartial {
		return admitPartial(p)
	}
	if p.Meta.GSOType != splitter.GSONone {
		return DropBadGSO
	}
	return DropNone
}

// admitPartial is the part of admit for packets with a partial checksum.
func admitPartial(p *Packet) DropReason {
	m := &p.Meta
	gso := m.GSOType != splitter.GSONone
	if gso && splitter.CheckGSO(p.Header, m, p.PayloadLen) == nil {
		return DropNone // CheckGSO has checked the checksum's place, too
	}
	l4 := m.Headers.Class == splitter.TCP || m.Headers.Class == splitter.UDP
	switch {
	case !m.CsumAllowed(p.Len()) || !l4 && !reachable(p):
		return DropBadCsum
	case gso:
		return DropBadGSO
	case !l4 || p.Len() > m.Headers.FrameLen:
		return unplaced
	}
	return DropNone
}

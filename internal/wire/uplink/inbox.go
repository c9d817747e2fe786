package uplink

import (
	"errors"
	"fmt"
	"net"
	"time"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/splitter"
)

const (
	inBatch  = 64                             // most frames that the Sender has in flight
	maxSuper = 65535 + splitter.EthLen + tags // longest frame from a tap
)

// inbox holds incoming frames for the switch.
type inbox struct {
	u       *Uplink
	longest int // longest frame, or segment of a GSO packet, with its tags
	skip    int // length of a tap's virtio_net_hdr; 0 for other carriers
	free    chan *frame
	filled  chan *frame
	sender  *nic.Sender

	// The Sender's worker uses the fields below.
	worker *wire.Worker
	slots  [inBatch]inSlot
	segs   [1]dma.Segment
	loops  [loopFrames]time.Time // ring with the times of the last frames with ErrLoop
	nLoops int
	now    func() time.Time
}

type inSlot struct {
	f   *frame
	buf [vnetLen + nic.MaxHeader]byte
}

var (
	_ nic.TxQueue = (*inbox)(nil)
	_ nic.Outlet  = (*inbox)(nil)
)

func newInbox(u *Uplink) (*inbox, error) {
	q := &inbox{u: u, longest: u.o.MTU + splitter.EthLen + tags, worker: wire.NewWorker(), now: u.o.now}
	n := q.longest
	if u.o.Tap != "" {
		q.skip, n = vnetLen, vnetLen+maxSuper
	}
	q.free = newFrames(n)
	q.filled = make(chan *frame, cap(q.free))
	s, err := nic.NewSender(q, q, nic.SenderOptions{Batch: inBatch})
	if err != nil {
		return nil, err
	}
	q.sender = s
	return q, nil
}

// add copies an incoming frame to a buffer, for the Sender; it drops a frame that is too short or too long. It waits
// for a free buffer until the uplink ends.
func (q *inbox) add(b []byte) {
	why := none
	switch {
	case len(b) < q.skip+splitter.EthLen:
		why = badFrame
	case q.skip == 0 && len(b) > q.longest || len(b) > q.skip+maxSuper:
		why = tooLong
	}
	if why != none {
		q.u.count.refuse(why)
		return
	}
	select {
	case f := <-q.free:
		f.n = copy(f.b, b)
		q.filled <- f
		q.sender.Wake()
	case <-q.u.ended:
	}
}

// ErrLoop is the error of an incoming frame whose source is the own MAC of a NIC of this switch. loopFrames such
// frames within loopTime end the uplink.
var ErrLoop = errors.New("received frames from a MAC of this switch")

// An uplink ends after loopFrames frames with ErrLoop within loopTime.
const (
	loopFrames = 8
	loopTime   = 10 * time.Second
)

func (q *inbox) looped(now time.Time) bool {
	q.loops[q.nLoops%loopFrames] = now
	q.nLoops++
	first := q.loops[q.nLoops%loopFrames]
	return q.nLoops >= loopFrames && now.Sub(first) <= loopTime
}

// Gather implements nic.TxQueue.
func (q *inbox) Gather(free []*nic.TxFrame) (filled, taken int, err error) {
	for filled < len(free) {
		var f *frame
		select {
		case f = <-q.filled:
		default:
			return filled, taken, nil
		}
		taken++
		t := free[filled]
		s := &q.slots[t.Slot]
		s.f = f
		if why := q.describe(s, &t.Packet); why != none {
			q.u.count.refuse(why)
			q.release(s)
			continue
		}
		if err = q.checkSource(&t.Packet); err != nil {
			why := ourSource
			if errors.Is(err, ErrLoop) {
				why = loop
			}
			q.u.link.GaveUp(q.worker, &t.Packet, wire.DropMAC)
			q.u.count.drop(why, "mac", net.HardwareAddr(t.Packet.Src[:]).String(), "err", err)
			q.release(s)
			if why == loop && q.looped(q.now()) {
				return filled, taken, err
			}
			continue
		}
		filled++
	}
	return filled, taken, nil
}

func (q *inbox) describe(s *inSlot, p *wire.Packet) reason {
	q.segs[0] = s.f.mem.Segment(0, uint32(s.f.n))
	if nic.ParseFrame(q.worker.Copier, q.segs[:], uint32(q.skip), uint32(s.f.n), s.buf[:], p) != nil {
		return badFrame
	}
	p.Meta = splitter.Meta{Headers: p.Meta.Headers}
	if q.skip > 0 {
		if why := readVnet((*[vnetLen]byte)(s.buf[:]), &p.Meta); why != none {
			return why
		}
		longest := s.f.n - q.skip
		if p.Meta.GSOType != splitter.GSONone {
			longest = min(longest, int(p.Meta.Headers.HdrLen)+int(p.Meta.GSOSize))
		}
		if longest > q.longest {
			return tooLong
		}
	}
	vouch(p, s.f.b[q.skip:s.f.n])
	p.Prepare()
	return none
}

// vouch verifies the checksum of a TCP or UDP frame whose Meta.Csum is CsumNone. If it is right, vouch makes it
// CsumGood.
func vouch(p *wire.Packet, b []byte) {
	h := &p.Meta.Headers
	if p.Meta.Csum != splitter.CsumNone || h.Class != splitter.TCP && h.Class != splitter.UDP {
		return
	}
	payload := b[h.HdrLen:h.FrameLen]
	if splitter.VerifyL4(h, p.Header, uint32(len(payload)), dma.Fold(dma.Checksum(payload, 0))) == splitter.CsumGood {
		p.Meta.Csum = splitter.CsumGood
	}
}

// checkSource returns an error if a frame may not come in because another port owns its source MAC.
func (q *inbox) checkSource(p *wire.Packet) error {
	if q.u.sw.Find(p.Src) == q.u.link {
		return nil
	}
	l, isPortMAC := q.u.sw.Owner(p.Src)
	switch {
	case l == nil || l == q.u.link:
		return nil
	case isPortMAC && !l.Router():
		return fmt.Errorf("%w: %s is that of %s: the network behind the uplink leads back here, or has a machine with the "+
			"same MAC, which then needs another (mac: in its lab file)", ErrLoop, net.HardwareAddr(p.Src[:]), l.Name())
	}
	return fmt.Errorf("its source MAC is that of %s", l.Name())
}

func (q *inbox) release(s *inSlot) {
	q.free <- s.f
	s.f = nil
}

// Send implements nic.Outlet.
func (q *inbox) Send(batch []*wire.Packet) {
	q.u.link.Deliver(q.worker, batch)
	for _, p := range batch {
		if p.Verdict.Reason == wire.DropStorm {
			q.u.count.drop(storm, "hint", "two paths to one network are a loop")
		}
	}
}

// Dropped implements nic.Outlet.
func (q *inbox) Dropped(p *wire.Packet, r wire.DropReason) { q.u.link.GaveUp(q.worker, p, r) }

// Reload implements nic.TxQueue.
func (q *inbox) Reload(t *nic.TxFrame, _ bool) (ok bool, err error) {
	f := q.slots[t.Slot].f
	q.segs[0] = f.mem.Segment(0, uint32(f.n))
	return nic.RelocatePayload(q.segs[:], uint32(q.skip), uint32(f.n), &t.Packet) == nil, nil
}

// Done implements nic.TxQueue.
func (q *inbox) Done(ts []*nic.TxFrame) error {
	for _, t := range ts {
		q.release(&q.slots[t.Slot])
	}
	return nil
}

// Abandon implements nic.TxQueue.
func (q *inbox) Abandon(t *nic.TxFrame) (kept bool) {
	q.release(&q.slots[t.Slot])
	return false
}

// Publish implements nic.TxQueue.
func (q *inbox) Publish() (call bool) { return false }

// Call implements nic.TxQueue.
func (q *inbox) Call() {}

// Pending implements nic.TxQueue.
func (q *inbox) Pending() bool { return len(q.filled) > 0 }

// Backlog implements nic.TxQueue.
func (q *inbox) Backlog() (frames int, full bool) { return len(q.filled), len(q.free) == 0 }

// EnableKick implements nic.TxQueue: add wakes the Sender for each frame.
func (q *inbox) EnableKick() (more bool) { return q.Pending() }

// DisableKick implements nic.TxQueue.
func (q *inbox) DisableKick() {}

// Idle implements nic.TxQueue.
func (q *inbox) Idle([]*nic.TxFrame) {}

// Stopped implements nic.TxQueue.
func (q *inbox) Stopped(err error) { q.u.fail(err) }

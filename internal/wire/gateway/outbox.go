package gateway

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/splitter"
)

const (
	outBatch     = 32           // most frames that the Sender has, held ones included
	destUnderWay = outBatch / 4 // most of these frames for one destination
	slotSize     = 66 << 10
	directPieces = 4 // most pieces of a payload that stays in netstack's memory (outSlot.refer)
)

// outbox holds packets of netstack, and of the gateway itself, for the wire.
type outbox struct {
	link   *wire.Link // set before run; nil: Send drops the packets
	count  *counters
	log    *slog.Logger
	sender *nic.Sender

	mu     sync.Mutex
	queue  outQueue // mu guards queue and closed
	closed bool

	// Only the Sender's worker uses the fields below.
	worker *wire.Worker
	slots  [outBatch]outSlot
}

var _ nic.TxQueue = (*outbox)(nil)

type outSlot struct {
	frame []byte // buffer of slotSize bytes, with the header of the frame or all of it
	mem   *dma.Region
	pkt   *stack.PacketBuffer // has the rest of the frame; nil: frame has all of it
	dest  *dest
}

func (s *outSlot) release() *dest {
	if s.pkt != nil {
		s.pkt.DecRef()
		s.pkt = nil
	}
	return s.dest
}

func newOutbox(count *counters, log *slog.Logger) (*outbox, error) {
	o := &outbox{count: count, log: log, worker: wire.NewWorker(), queue: outQueue{dests: map[wire.MAC]*dest{}}}
	for i := range o.slots {
		b := make([]byte, slotSize)
		o.slots[i] = outSlot{frame: b, mem: dma.NewBuffer(b, dma.Wire)}
	}
	var err error
	o.sender, err = nic.NewSender(o, o, nic.SenderOptions{Batch: outBatch, Drain: true})
	return o, err
}

func (o *outbox) run() { o.sender.Start(-1, false) }

// put adds a packet, with a reference of its own; false: there is no room, or the outbox is closed. It counts in
// outFull the packets that it drops, which may be other destinations'.
func (o *outbox) put(pkt *stack.PacketBuffer) bool {
	o.mu.Lock()
	taken, lost := false, 1
	if !o.closed {
		taken, lost = o.queue.put(pkt)
	}
	o.mu.Unlock()
	o.count.outFull.Add(uint64(lost))
	if taken {
		o.sender.Wake()
	}
	return taken
}

// await waits until a destination's queue of data has room for these numbers of frames and bytes or, if it had to wait,
// until it is the caller's turn (dest.relieve). It reserves no room. false: limits.Patience has passed, or ctx ended.
func (o *outbox) await(ctx context.Context, to wire.MAC, frames, bytes int) bool {
	o.mu.Lock()
	d := o.queue.dests[to]
	if d == nil || len(d.waiters) == 0 && d.room(frames, bytes) {
		o.mu.Unlock()
		return true
	}
	turn := make(chan struct{})
	d.waiters = append(d.waiters, turn)
	o.mu.Unlock()
	patience := time.NewTimer(limits.Patience.Here())
	defer patience.Stop()
	select {
	case <-turn:
		return true
	case <-patience.C:
	case <-ctx.Done():
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	d.waiters = slices.DeleteFunc(d.waiters, func(w chan struct{}) bool { return w == turn })
	return false
}

func (o *outbox) close() {
	o.mu.Lock()
	o.closed = true
	o.mu.Unlock()
	o.sender.Close()
}

// Send implements nic.Outlet.
func (o *outbox) Send(batch []*wire.Packet) {
	if o.link != nil {
		o.link.Deliver(o.worker, batch)
		return
	}
	for _, p := range batch {
		p.Verdict = wire.Drop(wire.DropStopped)
	}
}

// Dropped implements nic.Outlet.
func (o *outbox) Dropped(p *wire.Packet, r wire.DropReason) {
	if o.link != nil {
		o.link.GaveUp(o.worker, p, r)
	}
}

// Gather implements nic.TxQueue.
func (o *outbox) Gather(free []*nic.TxFrame) (filled, taken int, err error) {
	for filled < len(free) {
		pkt, dest := o.take()
		if pkt == nil {
			break
		}
		taken++
		f := free[filled]
		s := &o.slots[f.Slot]
		if s.describe(pkt, &f.Packet) {
			s.dest = dest
			filled++
		} else {
			o.count.outBad.Add(1)
			o.done(dest)
		}
		pkt.DecRef()
	}
	return filled, taken, nil
}

func (o *outbox) take() (*stack.PacketBuffer, *dest) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.queue.take()
}

func (o *outbox) done(d *dest) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.queue.done(d)
}

// Reload implements nic.TxQueue: the memory of frames does not move.
func (o *outbox) Reload(*nic.TxFrame, bool) (ok bool, err error) { return true, nil }

// Done implements nic.TxQueue.
func (o *outbox) Done(fs []*nic.TxFrame) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, f := range fs {
		o.queue.done(o.slots[f.Slot].release())
		switch f.Packet.Verdict.Kind {
		case wire.Taken:
			o.count.sent.Add(1)
		case wire.Busy:
			o.count.outGaveUp.Add(1)
		default:
			o.count.outDropped.Add(1)
		}
	}
	return nil
}

// Abandon implements nic.TxQueue.
func (o *outbox) Abandon(f *nic.TxFrame) (kept bool) {
	o.count.outGaveUp.Add(1)
	o.done(o.slots[f.Slot].release())
	return false
}

// Publish implements nic.TxQueue.
func (o *outbox) Publish() (call bool) { return false }

// Call implements nic.TxQueue.
func (o *outbox) Call() {}

// Pending implements nic.TxQueue.
func (o *outbox) Pending() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.queue.turn) > 0
}

// Backlog implements nic.TxQueue. put does not wait for space, so full is false.
func (o *outbox) Backlog() (frames int, full bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, d := range o.queue.dests {
		frames += len(d.data.pkts) + len(d.answers.pkts)
	}
	return frames, false
}

// EnableKick implements nic.TxQueue: put wakes the Sender for each packet that it adds.
func (o *outbox) EnableKick() (more bool) { return o.Pending() }

// DisableKick implements nic.TxQueue.
func (o *outbox) DisableKick() {}

// Idle implements nic.TxQueue.
func (o *outbox) Idle([]*nic.TxFrame) {}

// Stopped implements nic.TxQueue.
func (o *outbox) Stopped(err error) { o.log.Error("the gateway sends no more", "err", err) }

// describe makes p describe a packet, with memory of s or of pkt; false: the packet is malformed, or longer than
// slotSize.
func (s *outSlot) describe(pkt *stack.PacketBuffer, p *wire.Packet) bool {
	*p = wire.Packet{Payload: p.Payload[:0]}
	slices, h := pkt.AsSlices(), &p.Meta.Headers
	if !s.refer(pkt, slices, p) && !s.copyAll(slices, p) {
		return false
	}
	if h.Class == splitter.TCP || h.Class == splitter.UDP {
		p.Meta.Csum = splitter.CsumGood
	}
	if g := &pkt.GSOOptions; h.Class == splitter.TCP && g.Type != stack.GSONone && g.NeedsCsum {
		p.Meta.Csum = splitter.CsumPartial
		p.Meta.CsumStart, p.Meta.CsumOffset, _ = splitter.CsumPlace(h)
		splitter.FixPartial(h, p.Header, p.PayloadLen)
		if p.PayloadLen > uint32(g.MSS) {
			p.Meta.GSOSize, p.Meta.GSOType = g.MSS, splitter.GSOTCPv4
			if h.IPv6 {
				p.Meta.GSOType = splitter.GSOTCPv6
			}
		}
	}
	p.Prepare()
	return true
}

// refer makes p describe a TCP packet whose payload stays in netstack's memory until release; false: it cannot, for
// example because there are less than directLen bytes of payload, or more than directPieces pieces.
func (s *outSlot) refer(pkt *stack.PacketBuffer, slices [][]byte, p *wire.Packet) bool {
	h, size := &p.Meta.Headers, pkt.Size()
	if len(slices) < 2 || len(slices) > 1+directPieces || len(slices[0]) > splitter.MaxHeader ||
		size-len(slices[0]) < directLen {
		return false
	}
	n := copy(s.frame, slices[0])
	if splitter.Parse(s.frame[:n], uint32(size), h) != nil || h.Class != splitter.TCP || int(h.HdrLen) != n {
		return false
	}
	p.Header, p.PayloadLen = s.frame[:n], uint32(size-n)
	for _, b := range slices[1:] {
		p.Payload = append(p.Payload, dma.NewBuffer(b, dma.Wire).Segment(0, uint32(len(b))))
	}
	s.pkt = pkt.IncRef()
	return true
}

func (s *outSlot) copyAll(slices [][]byte, p *wire.Packet) bool {
	n, h := 0, &p.Meta.Headers
	for _, b := range slices {
		if len(b) > len(s.frame)-n {
			return false
		}
		n += copy(s.frame[n:], b)
	}
	head := min(n, splitter.MaxHeader)
	if n < splitter.EthLen || splitter.Parse(s.frame[:head], uint32(n), h) != nil || h.Class == splitter.Malformed {
		return false
	}
	if h.Class == splitter.TCP || h.Class == splitter.UDP {
		head = int(h.HdrLen)
	}
	p.Header = s.frame[:head]
	p.PayloadLen = uint32(n - head)
	if n > head {
		p.Payload = append(p.Payload, s.mem.Segment(uint64(head), p.PayloadLen))
	}
	return true
}

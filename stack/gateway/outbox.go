package gateway

import (
	"log/slog"
	"sync"

	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/nic"
	"vnic.dev/vnic/splitter"
	"vnic.dev/vnic/wire"
)

const (
	outboxFrames = 1024    // that wait for the worker; netstack takes more for lost
	outboxBytes  = 8 << 20 // of the same
	outBatch     = 16      // frames under way, those that wait for a busy receiver included
	slotSize     = 66 << 10
)

// outbox is what netstack sends, on its way to the wire: an nic.TxQueue, and the nic.Outlet of its own sender.
type outbox struct {
	link   *wire.Link // set before run; nil: there is none, and all is dropped
	count  *counters
	log    *slog.Logger
	sender *nic.Sender

	mu     sync.Mutex
	queue  []*stack.PacketBuffer // oldest first
	bytes  int
	closed bool

	// The sender's worker's.
	worker *wire.Worker
	slots  [outBatch]outSlot
}

var _ nic.TxQueue = (*outbox)(nil)

// outSlot has the bytes of a frame under way, in memory of ours, of the wire's domain.
type outSlot struct {
	frame []byte
	mem   *dma.Region
}

func newOutbox(count *counters, log *slog.Logger) (*outbox, error) {
	o := &outbox{count: count, log: log, worker: wire.NewWorker()}
	for i := range o.slots {
		b := make([]byte, slotSize)
		o.slots[i] = outSlot{frame: b, mem: dma.NewBuffer(b, dma.Wire)}
	}
	var err error
	o.sender, err = nic.NewSender(o, o, nic.SenderOptions{Batch: outBatch, Drain: true})
	return o, err
}

// run starts the worker. It has no thread of its own, and never spins.
func (o *outbox) run() { o.sender.Start(-1, false) }

// put adds a packet, of which it keeps a reference; false if there is no room.
func (o *outbox) put(pkt *stack.PacketBuffer) bool {
	n := pkt.Size()
	o.mu.Lock()
	if o.closed || len(o.queue) >= outboxFrames || o.bytes+n > outboxBytes && o.bytes > 0 {
		o.mu.Unlock()
		o.count.outFull.Add(1)
		return false
	}
	o.queue = append(o.queue, pkt.IncRef())
	o.bytes += n
	o.mu.Unlock()
	o.sender.Wake()
	return true
}

// close ends the worker, once it has sent what receivers take at once.
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

// Dropped implements nic.Outlet. Done and Abandon count.
func (o *outbox) Dropped(*wire.Packet) {}

// Gather implements nic.TxQueue.
func (o *outbox) Gather(free []*nic.TxFrame) (filled, taken int, err error) {
	for filled < len(free) {
		pkt := o.take()
		if pkt == nil {
			break
		}
		taken++
		f := free[filled]
		if o.slots[f.Slot].describe(pkt, &f.Packet) {
			filled++
		} else {
			o.count.outBad.Add(1)
		}
		pkt.DecRef()
	}
	return filled, taken, nil
}

// take takes the oldest packet out of the queue; nil: it is empty.
func (o *outbox) take() *stack.PacketBuffer {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.queue) == 0 {
		return nil
	}
	pkt := o.queue[0]
	o.queue[0] = nil
	o.queue = o.queue[1:]
	o.bytes -= pkt.Size()
	return pkt
}

// Reload implements nic.TxQueue: memory of ours stays where it is.
func (o *outbox) Reload(*nic.TxFrame, bool) (ok bool, err error) { return true, nil }

// Done implements nic.TxQueue.
func (o *outbox) Done(fs []*nic.TxFrame) error {
	for _, f := range fs {
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
func (o *outbox) Abandon(*nic.TxFrame) (kept bool) {
	o.count.outGaveUp.Add(1)
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
	return len(o.queue) > 0
}

// EnableKick implements nic.TxQueue: put wakes the sender each time.
func (o *outbox) EnableKick() (more bool) { return o.Pending() }

// DisableKick implements nic.TxQueue.
func (o *outbox) DisableKick() {}

// Idle implements nic.TxQueue.
func (o *outbox) Idle([]*nic.TxFrame) {}

// Stopped implements nic.TxQueue. Nothing of this queue can fail but the sleep.
func (o *outbox) Stopped(err error) { o.log.Error("the gateway sends no more", "err", err) }

// describe makes a packet for the wire of one of netstack's; false if it is none that can be sent.
func (s *outSlot) describe(pkt *stack.PacketBuffer, p *wire.Packet) bool {
	n := 0
	for _, b := range pkt.AsSlices() {
		if len(b) > len(s.frame)-n {
			return false
		}
		n += copy(s.frame[n:], b)
	}
	*p = wire.Packet{Payload: p.Payload[:0]}
	h := &p.Meta.Headers
	head := min(n, splitter.MaxHeader)
	if n < splitter.EthLen || splitter.Parse(s.frame[:head], uint32(n), h) != nil || h.Class == splitter.Malformed {
		return false
	}
	if h.Class == splitter.TCP || h.Class == splitter.UDP {
		head = int(h.HdrLen)
		p.Meta.Csum = splitter.CsumGood
	}
	p.Header = s.frame[:head]
	p.PayloadLen = uint32(n - head)
	if n > head {
		p.Payload = append(p.Payload, s.mem.Segment(uint64(head), p.PayloadLen))
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

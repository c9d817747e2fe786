package gateway

import (
	"sync"
	"time"

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

// outbox is what netstack sends, and the worker that hands it to the wire.
type outbox struct {
	link  *wire.Link // set before run; nil: there is none, and all is dropped
	count *counters
	wake  *nic.Sleeper
	done  chan struct{} // closed when run is done

	mu     sync.Mutex
	queue  []*stack.PacketBuffer // oldest first
	bytes  int
	closed bool

	// The worker's.
	worker   *wire.Worker
	slots    [outBatch]*outSlot
	used     int // slots[:used] are under way, oldest first
	batch    [outBatch]*wire.Packet
	waits    *nic.Waits
	patience nic.Patience
}

// outSlot is a frame under way: its bytes lie in memory of ours, of the wire's domain.
type outSlot struct {
	pkt   wire.Packet
	frame []byte
	mem   *dma.Region
	since time.Time // waiting since, for a busy receiver
}

func newOutbox(count *counters) (*outbox, error) {
	o := &outbox{count: count, done: make(chan struct{}), worker: wire.NewWorker(), patience: nic.Patience{Limit: nic.DefaultPatience}}
	var err error
	if o.wake, err = nic.NewSleeper(); err != nil {
		return nil, err
	}
	o.waits = nic.NewWaits(o.wake, outBatch)
	for i := range o.slots {
		b := make([]byte, slotSize)
		o.slots[i] = &outSlot{frame: b, mem: dma.NewBuffer(b, dma.Wire)}
	}
	return o, nil
}

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
	o.wake.Wake()
	return true
}

// close has the worker end, when it has sent what is there to those who take it at once.
func (o *outbox) close() {
	o.mu.Lock()
	o.closed = true
	o.mu.Unlock()
	o.wake.Wake()
	<-o.done
	o.wake.Close()
}

// run is the worker.
func (o *outbox) run() {
	defer close(o.done)
	defer o.patience.Reset()
	for {
		last := o.gather()
		if o.used > 0 {
			for i := range o.used {
				o.batch[i] = &o.slots[i].pkt
			}
			o.deliver(o.batch[:o.used])
			o.settle(last)
		}
		var err error
		switch {
		case last && o.pending() == 0:
			return
		case o.used > 0:
			err = o.sleepBusy()
		default:
			err = o.sleep(-1)
		}
		if err != nil { // ppoll does not fail
			time.Sleep(time.Millisecond)
		}
	}
}

func (o *outbox) deliver(batch []*wire.Packet) {
	if o.link != nil {
		o.link.Deliver(o.worker, batch)
		return
	}
	for _, p := range batch {
		p.Verdict = wire.Drop(wire.DropStopped)
	}
}

// gather fills free slots with what waits. closed: nothing is added any more.
func (o *outbox) gather() (closed bool) {
	for {
		o.mu.Lock()
		closed = o.closed
		if o.used == outBatch || len(o.queue) == 0 {
			o.mu.Unlock()
			return closed
		}
		pkt := o.queue[0]
		o.queue[0] = nil
		o.queue = o.queue[1:]
		o.bytes -= pkt.Size()
		o.mu.Unlock()
		if o.slots[o.used].describe(pkt) {
			o.used++
		} else {
			o.count.outBad.Add(1)
		}
		pkt.DecRef()
	}
}

func (o *outbox) pending() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.queue) + o.used
}

// describe makes a packet for the wire of one of netstack's; false if it is none that can be sent.
func (s *outSlot) describe(pkt *stack.PacketBuffer) bool {
	n := 0
	for _, b := range pkt.AsSlices() {
		if len(b) > len(s.frame)-n {
			return false
		}
		n += copy(s.frame[n:], b)
	}
	p := &s.pkt
	*p = wire.Packet{Payload: p.Payload[:0]}
	s.since = time.Time{}
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

// settle forgets the frames that are disposed of, and keeps those that met a busy receiver, unless this is the last round.
func (o *outbox) settle(last bool) {
	var now time.Time
	kept := 0
	for i := range o.used {
		s := o.slots[i]
		switch s.pkt.Verdict.Kind {
		case wire.Taken:
			o.count.sent.Add(1)
		case wire.Busy:
			if now.IsZero() {
				now = time.Now()
			}
			if s.since.IsZero() {
				s.since = now
			}
			if !last && o.patience.ShouldWait(s.pkt.Verdict.Queue, nic.Window{From: s.since, To: now}) {
				o.slots[kept], o.slots[i] = o.slots[i], o.slots[kept]
				kept++
				continue
			}
			o.count.outGaveUp.Add(1)
		default:
			o.count.outDropped.Add(1)
		}
	}
	o.used = kept
}

// sleepBusy sleeps until a receiver of held frames has buffers, there is more to send and room for it, or patience ends.
func (o *outbox) sleepBusy() error {
	defer o.waits.End()
	for _, s := range o.slots[:o.used] {
		if !o.waits.Add(s.pkt.Verdict.Queue, s.since) {
			return nil
		}
	}
	return o.sleep(o.waits.Left(o.patience.Limit))
}

// sleep sleeps for at most d, forever if it is negative. Not at all if there is something to do.
func (o *outbox) sleep(d time.Duration) error {
	o.wake.Park()
	o.mu.Lock()
	work := o.closed || len(o.queue) > 0 && o.used < outBatch
	o.mu.Unlock()
	if work {
		o.wake.Unpark()
		return nil
	}
	_, err := o.wake.Sleep(-1, d)
	return err
}

package uplink

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/splitter"
)

// outBatch is the most frames in one call of carrier.write.
const outBatch = 64

// outbox holds outgoing frames.
type outbox struct {
	u       *Uplink
	longest int // longest frame, with its tags
	room    int // carrier.room
	free    chan *frame
	filled  chan *frame
	waits   atomic.Bool
	active  atomic.Int32 // lanes that use buffers
	short   atomic.Bool

	mu    sync.Mutex
	lanes map[uint32]*lane // by wire.Packet.From
}

// lane counts the buffers that a sending port uses. That port's senders wait for buffers on the RxBase.
type lane struct {
	nic.RxBase
	o    *outbox
	used atomic.Int32
}

func newOutbox(u *Uplink) *outbox {
	o := &outbox{u: u, longest: u.o.MTU + splitter.EthLen + tags, room: u.c.room(), lanes: map[uint32]*lane{}}
	o.free = newFrames(o.room + o.longest)
	o.filled = make(chan *frame, cap(o.free))
	return o
}

// lane returns a port's lane. Before it makes one, it deletes the lanes without buffers and waiting senders if there
// are as many lanes as a switch can have ports.
func (o *outbox) lane(from uint32) *lane {
	o.mu.Lock()
	defer o.mu.Unlock()
	l := o.lanes[from]
	if l == nil {
		if len(o.lanes) >= wire.MaxPorts {
			maps.DeleteFunc(o.lanes, func(_ uint32, l *lane) bool { return l.used.Load() == 0 && !l.Waiting() })
		}
		l = &lane{o: o}
		l.Init(l)
		o.lanes[from] = l
	}
	return l
}

func (o *outbox) share() int32 { return max(1, int32(cap(o.free))/(max(1, o.active.Load())+1)) }

// take takes a free buffer for the lane; nil: the lane has used its share, or no buffer is free.
func (l *lane) take() *frame {
	if l.count(1) > l.o.share() {
		l.count(-1)
		return nil
	}
	select {
	case f := <-l.o.free:
		f.lane = l
		return f
	default:
		l.count(-1)
		return nil
	}
}

func (l *lane) count(n int32) int32 {
	used := l.used.Add(n)
	if n > 0 && used == n || n < 0 && used == 0 {
		l.o.active.Add(n)
	}
	return used
}

// put copies a packet to buffer f, queues f, and returns Taken. If it cannot read the packet, it releases f, and
// returns a drop.
func (o *outbox) put(w *wire.Worker, pkt *wire.Packet, f *frame) wire.Verdict {
	n := o.room + copy(f.b[o.room:], pkt.Header)
	k, err := w.Copier.Read(f.b[n:], pkt.Payload)
	if f.n = n + k; err != nil || f.n != o.room+int(pkt.Len()) {
		o.release(f)
		return wire.Drop(wire.DropFault)
	}
	f.flow = flowOf(&pkt.Meta.Headers)
	l := f.lane
	o.filled <- f // filled has room for all buffers
	return wire.Verdict{Kind: wire.Taken, Queue: l}
}

// flowOf returns a hash of the ports of a TCP or UDP frame, or 0 for another frame.
func flowOf(h *splitter.Headers) uint32 {
	if h.Class != splitter.TCP && h.Class != splitter.UDP {
		return 0
	}
	return uint32(h.Flow.SrcPort)*0x9e37 ^ uint32(h.Flow.DstPort)*0x79b9
}

func (o *outbox) release(f *frame) {
	l := f.lane
	f.lane = nil
	o.free <- f
	l.count(-1)
	if l.Waiting() {
		l.relieve()
	}
	if o.short.Load() && o.short.Swap(false) {
		o.each((*lane).relieve)
	}
}

func (o *outbox) each(f func(*lane)) {
	o.mu.Lock()
	lanes := slices.Collect(maps.Values(o.lanes))
	o.mu.Unlock()
	for _, l := range lanes {
		f(l)
	}
}

func (l *lane) relieve() {
	l.Lock()
	defer l.Unlock()
	if !l.AwaitBuffers() {
		l.WakeAll()
	}
}

// AwaitBuffers implements nic.RxModel. When it returns false, the port's senders try again, and Deliver may drop their
// frames.
func (l *lane) AwaitBuffers() bool {
	select {
	case <-l.o.u.ended:
		return false
	default:
	}
	switch {
	case l.o.waits.Load():
		return false
	case l.used.Load() > l.o.share()/2:
		return true
	case len(l.o.free) > 0:
		return false
	}
	l.o.short.Store(true) // before free is read: release frees first, and then reads short
	return len(l.o.free) == 0
}

// Buffers implements nic.RxModel.
func (l *lane) Buffers() int { return len(l.o.free) }

// Stopped implements nic.RxModel. This queue cannot fail.
func (l *lane) Stopped(error) {}

// wait is the function that the carrier's write calls before it waits for the socket: from then on, until write
// returns, Deliver drops frames that find no buffer.
func (o *outbox) wait() {
	o.waits.Store(true)
	o.each((*lane).relieve)
}

func (o *outbox) run() {
	var batch [outBatch]*frame
	wait := o.wait // one method value for all batches
	for {
		n := 1
		select {
		case batch[0] = <-o.filled:
		case <-o.u.ended:
			return
		}
	more:
		for n < outBatch {
			select {
			case batch[n] = <-o.filled:
				n++
			default:
				break more
			}
		}
		o.u.c.write(batch[:n], wait)
		o.waits.Store(false)
		for _, f := range batch[:n] {
			o.release(f)
		}
	}
}

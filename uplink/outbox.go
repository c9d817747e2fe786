package uplink

import (
	"sync/atomic"

	"vnic.dev/vnic/nic"
	"vnic.dev/vnic/splitter"
	"vnic.dev/vnic/wire"
)

// outBatch is how many frames go to the carrier at once.
const outBatch = 64

// outbox is what waits to go out. Senders that find it full wait on its RxBase.
type outbox struct {
	nic.RxBase
	u       *Uplink
	longest int // frame, with its tags
	room    int
	free    chan *frame
	filled  chan *frame // as many
	waits   atomic.Bool // the carrier waits for its socket
}

func newOutbox(u *Uplink) *outbox {
	o := &outbox{u: u, longest: u.o.MTU + splitter.EthLen + tags, room: u.c.room()}
	o.free = newFrames(o.room + o.longest)
	o.filled = make(chan *frame, cap(o.free))
	o.Init(o)
	return o
}

// put copies a packet to a buffer, and has it sent.
func (o *outbox) put(w *wire.Worker, pkt *wire.Packet, f *frame) wire.Verdict {
	n := o.room + copy(f.b[o.room:], pkt.Header)
	k, err := w.Copier.Read(f.b[n:], pkt.Payload)
	if f.n = n + k; err != nil || f.n != o.room+int(pkt.Len()) {
		o.release(f)
		return wire.Drop(wire.DropFault)
	}
	f.flow = flowOf(&pkt.Meta.Headers)
	o.filled <- f // which has room for all that there are
	return wire.Verdict{Kind: wire.Taken, Queue: o}
}

// flowOf is a number by which frames of different flows are told apart. It is no secret, and needs not be.
func flowOf(h *splitter.Headers) uint32 {
	if h.Class != splitter.TCP && h.Class != splitter.UDP {
		return 0
	}
	return uint32(h.Flow.SrcPort)*0x9e37 ^ uint32(h.Flow.DstPort)*0x79b9
}

// release gives a buffer back.
func (o *outbox) release(f *frame) {
	o.free <- f
	if o.Waiting() {
		o.relieve()
	}
}

// relieve has senders woken if they need not wait any more.
func (o *outbox) relieve() {
	o.Lock()
	defer o.Unlock()
	if !o.AwaitBuffers() {
		o.WakeAll()
	}
}

// wakeAll has all senders woken: they are not to wait, whatever there is.
func (o *outbox) wakeAll() {
	o.Lock()
	defer o.Unlock()
	o.WakeAll()
}

// AwaitBuffers implements nic.RxModel: senders wait until half of the buffers are free.
func (o *outbox) AwaitBuffers() bool {
	select {
	case <-o.u.ended:
		return false
	default:
	}
	return !o.waits.Load() && len(o.free) < cap(o.free)/2
}

// Stopped implements nic.RxModel. Nothing of this queue can fail.
func (o *outbox) Stopped(error) {}

// wait is called before the carrier waits: from now on frames that find no buffer are dropped.
func (o *outbox) wait() {
	o.waits.Store(true)
	o.relieve()
}

// run sends what is filled, until the uplink ends.
func (o *outbox) run() {
	var batch [outBatch]*frame
	wait := o.wait // made once
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

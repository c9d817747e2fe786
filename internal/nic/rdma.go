package nic

import (
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/lab/shape"
	"vnic.dev/vnic/internal/mailbox"
	"vnic.dev/vnic/internal/nic/rdma"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/splitter"
)

// roceBatch bounds the RDMA frames in flight, held ones included.
const roceBatch = 32

// roce is a port's RDMA. It has an rdma.Engine, and is the TxQueue of the frames that the Engine sends and the Outlet
// of that queue's Sender.
type roce struct {
	port   *Port
	engine atomic.Pointer[rdma.Engine]
	way    atomic.Pointer[shape.Route] // with a Shape: route of the last packet received; nil: none yet
	rests  atomic.Bool                 // the NIC drops RDMA packets to and from it

	mu     sync.Mutex // held by close, and by begin while it makes the Engine
	closed bool
	sender *Sender

	worker *wire.Worker
	run    []*wire.Packet
	byMem  bytesByMem
}

// begin returns the Engine. If there is none, it makes one with its Sender, except after close or on a port without
// an address space (ENODEV).
func (r *roce) begin() (*rdma.Engine, error) {
	if e := r.engine.Load(); e != nil {
		return e, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.engine.Load(); e != nil {
		return e, nil
	}
	p := r.port
	if r.closed || p.space == nil {
		return nil, fmt.Errorf("rdma: the NIC has ended: %w", syscall.ENODEV)
	}
	r.worker, r.run = wire.NewWorker(), make([]*wire.Packet, 0, roceBatch)
	sender, err := NewSender(r, r, SenderOptions{Space: p.space, Batch: roceBatch})
	if err != nil {
		return nil, err
	}
	r.sender = sender
	e := rdma.New(rdma.Config{MAC: p.conf.MAC, MTU: func() uint16 { return uint16(p.mtu.Load()) }, Space: p.space,
		Buffer: p.buffer, GPU: p.gpuMemory, Mailbox: p.mailbox, Direct: p.direct, Wake: sender.Wake,
		Tell: func(cq uint32) {
			p.notice(func(frame []byte) []byte { return p.dispatcher.NotifyCompletions(frame, p.conf.MAC, cq) })
		},
		Ask: func(q control.PageRequest) {
			p.notice(func(frame []byte) []byte { return p.dispatcher.NotifyPages(frame, p.conf.MAC, &q) })
		},
	}, roceBatch)
	r.engine.Store(e)
	sender.Start(-1, false)
	return e, nil
}

// SuspendRDMA suspends RDMA, or resumes it if on is false. The virtio model suspends it while the guest is paused or
// gone. While RDMA is suspended, the NIC drops RDMA packets to and from it.
func (p *Port) SuspendRDMA(on bool) { p.rdma.rests.Store(on) }

func (p *Port) buffer(id uint32) (memory *dma.Region, off, size uint64, ok bool) {
	for _, b := range p.state().Buffers {
		if b.ID == id {
			return p.registry.GPU(int(b.GPU)).Region(), b.Off, b.Size, true
		}
	}
	return nil, 0, 0, false
}

// gpuMemory returns the memory of a GPU of the port; nil: the port has no such GPU.
func (p *Port) gpuMemory(id uint16) *dma.Region {
	if g := p.registry.GPU(int(id)); g != nil {
		return g.Region()
	}
	return nil
}

func (p *Port) mailbox(id uint16, off uint64) (rdma.Mailbox, error) {
	g := p.registry.GPU(int(id))
	if g == nil {
		return nil, fmt.Errorf("no GPU %d: %w", id, syscall.ENODEV)
	}
	m, err := mailbox.Open(g, off)
	if err != nil {
		return nil, err
	}
	return m, nil
}

// active reports whether there are RDMA queue pairs. If so, UDP frames to the port's MAC and RoCEv2's port do not go to
// the receive queues (deliver).
func (r *roce) active() bool {
	e := r.engine.Load()
	return e != nil && e.Active()
}

func (r *roce) usesBuffer(id uint32) bool {
	e := r.engine.Load()
	return e != nil && e.UsesBuffer(id)
}

func (r *roce) reset() {
	if e := r.engine.Load(); e != nil {
		e.Reset()
	}
}

func (r *roce) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	if e := r.engine.Load(); e != nil {
		e.Close()
		r.sender.Close()
	}
}

func (r *roce) deliver(d *delivery, batch []*wire.Packet, trouble uint32) {
	e := r.engine.Load()
	begin := 0
	for i, p := range batch {
		h := &p.Meta.Headers
		if h.Class != splitter.UDP || h.Flow.DstPort != rdma.Port || p.Dst != r.port.conf.MAC {
			continue
		}
		if begin < i {
			d.toQueues(batch[begin:i], trouble)
		}
		begin = i + 1
		r.receive(e, d, p)
	}
	if begin < len(batch) {
		d.toQueues(batch[begin:], trouble)
	}
}

// receive passes a packet to the Engine, or drops it while RDMA is suspended. With a Shape, the packet first passes
// the links of the last packet's route, as its own memory is not known yet, and may become Busy while they are in use.
func (r *roce) receive(e *rdma.Engine, d *delivery, p *wire.Packet) {
	if r.rests.Load() {
		p.Verdict = wire.Drop(wire.DropStopped)
		if d.tap != nil {
			d.tap.Received(d.w, p, wire.Nowhere)
		}
		return
	}
	s := d.gate.shape
	if s != nil {
		way := r.way.Load()
		if way == nil {
			way = s.Rx.Host
		}
		if d.w.Flooding() {
			way.Take(shape.Now(), use(p, 1))
		} else if !d.gate.passes(p, p.Progress.Arrives(), way, use(p, 1), d.w.Cutting()) {
			return
		}
	}
	taken, gpu, bounced := e.Receive(d.w.Copier, p)
	p.Verdict = wire.Verdict{Kind: wire.Taken}
	if !taken {
		p.Verdict = wire.Drop(wire.DropRDMA)
	}
	if s != nil {
		r.way.Store(s.Rx.route(&bytesByMem{gpu: int32(gpu)}, bounced))
	}
	if d.tap != nil {
		d.tap.Received(d.w, p, wire.Nowhere)
	}
}

// Send implements Outlet.
func (r *roce) Send(batch []*wire.Packet) {
	p, e := r.port, r.engine.Load()
	link := p.link.Load()
	run, g := r.run[:0], gate{shape: p.conf.Shape}
	for _, pkt := range batch {
		if g.shape != nil {
			segs, bounced := e.Payload(pkt.Tag)
			r.byMem.reset(p.space.Nodes() > 0)
			r.byMem.locate(segs)
			r.byMem.buffers = 1 + uint32(len(segs))
			if !g.leaves(pkt, &r.byMem, !bounced) {
				continue
			}
		}
		run = append(run, pkt)
	}
	if len(run) == 0 {
		return
	}
	if link != nil && p.trouble.Load()&noCarrier == 0 && !r.rests.Load() {
		link.Deliver(r.worker, run)
		return
	}
	for _, pkt := range run {
		pkt.Verdict = wire.Drop(wire.DropStopped)
		if link != nil {
			link.GaveUp(r.worker, pkt, wire.DropStopped)
		}
	}
}

// Dropped implements Outlet.
func (r *roce) Dropped(p *wire.Packet, why wire.DropReason) {
	if link := r.port.link.Load(); link != nil {
		link.GaveUp(r.worker, p, why)
	}
}

// Gather implements TxQueue.
func (r *roce) Gather(free []*TxFrame) (filled, taken int, err error) {
	e := r.engine.Load()
	e.TellAll()
	for filled < len(free) && e.Next(free[filled].Slot, &free[filled].Packet) {
		filled++
	}
	return filled, filled, nil
}

// Reload implements TxQueue: frames are copies in the Engine's memory, which does not move.
func (r *roce) Reload(*TxFrame, bool) (ok bool, err error) { return true, nil }

// Done implements TxQueue.
func (r *roce) Done([]*TxFrame) error { return nil }

// Abandon implements TxQueue.
func (r *roce) Abandon(*TxFrame) (kept bool) { return false }

// Publish implements TxQueue.
func (r *roce) Publish() (call bool) { return false }

// Call implements TxQueue.
func (r *roce) Call() {}

// Pending implements TxQueue.
func (r *roce) Pending() bool { return r.engine.Load().Pending() }

// Backlog implements TxQueue.
func (r *roce) Backlog() (frames int, full bool) { return 0, false }

// EnableKick implements TxQueue.
func (r *roce) EnableKick() (more bool) { return r.Pending() }

// DisableKick implements TxQueue.
func (r *roce) DisableKick() {}

// Idle implements TxQueue.
func (r *roce) Idle([]*TxFrame) {}

// Stopped implements TxQueue.
func (r *roce) Stopped(err error) {
	r.port.conf.Log.Error("RDMA sends no more", "port", r.port.conf.Name, slog.Any("err", err))
}

// DelayPageAcks makes the NIC delay its acknowledgments of page invalidations by d; negative: it sends none.
func (p *Port) DelayPageAcks(d time.Duration) error {
	return toRDMA(p, func(e *rdma.Engine, d time.Duration) error { e.DelayAcks(d); return nil }, d)
}

// LosePageAnswers makes the NIC lose the next n answers to page requests.
func (p *Port) LosePageAnswers(n int) error {
	return toRDMA(p, func(e *rdma.Engine, n int) error { e.LoseAnswers(n); return nil }, n)
}

// KeepStalePages sets whether the NIC acknowledges invalidations but goes on using pages in the GPU, as a broken one
// would. An invalidation that ends the memory region is excepted.
func (p *Port) KeepStalePages(on bool) error {
	return toRDMA(p, func(e *rdma.Engine, on bool) error { e.KeepStale(on); return nil }, on)
}

package rdma

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/epoch"
	"vnic.dev/vnic/internal/wire"
)

// Bounds of a port's tables, queue pairs and messages.
const (
	MaxPDs    = 64
	MaxMRs    = 1024
	MaxRanges = 1 << 16 // ranges of guest memory, in all memory regions (MRs) together
	MaxCQs    = 256
	MaxQPs    = 256
	MaxDepth  = 4096    // completions in a completion queue
	MaxWRs    = 1024    // work requests in the send queue, and in the receive queue, of a queue pair
	MaxPlaces = 1 << 17 // slots for work requests and completions, in all queues together
	MaxReads  = 16      // READ requests of a queue pair in progress, in each direction
	MaxLength = 1 << 30 // bytes of a work request of PostSend
	Window    = 128     // packets without an answer at which a queue pair sends no more requests
	readPiece = Window / 4
	burst     = 16 // packets of a queue pair in one turn
)

// Config connects an Engine to its port.
type Config struct {
	MAC   wire.MAC
	MTU   func() uint16 // of the link, as the guest sees it
	Space *dma.Space
	// Buffer finds a registered buffer: the memory of its GPU, and its offset and size there. ok is false if there is
	// no such buffer.
	Buffer func(id uint32) (memory *dma.Region, off, size uint64, ok bool)
	// GPU returns the memory of a GPU of this port; nil: the port has no such GPU. Mailbox opens the mailbox at an
	// offset of a GPU's memory.
	GPU     func(gpu uint16) *dma.Region
	Mailbox func(gpu uint16, off uint64) (Mailbox, error)
	// Direct reports whether the NIC reaches all GPU memory in segs peer to peer.
	Direct func(segs []dma.Segment) bool
	// Wake wakes the worker, which then calls TellAll and Next. Wake must not wait.
	Wake func()
	// Tell notifies the driver of a completion queue with completions, and Ask sends the driver a request for pages. The
	// worker calls them, without a lock.
	Tell func(cq uint32)
	Ask  func(r control.PageRequest)
	// Random is the source of keys and of the first queue pair's number; it must not fail. nil:
	// crypto/rand.
	Random io.Reader
}

// Engine is the RDMA part of a port.
type Engine struct {
	c      Config
	start  time.Time
	users  epoch.Epoch // goroutines that use objects which commands may delete
	active atomic.Int32

	mu     sync.Mutex // held by commands that make or delete objects
	closed bool
	lastID uint32
	pds    map[uint32]bool
	cqs    map[uint32]*cq
	mrs    *slots[region]
	qps    *slots[qp]
	ranges int
	taken  int // slots taken, of MaxPlaces
	paging paging

	runMu sync.Mutex // a goroutine that holds it takes no other lock
	run   []*qp      // queue pairs with something to send
	tells []uint32   // ids of completion queues for which the worker is to call Tell
	timer *time.Timer
	due   int64 // when timer fires; 0: not set; negative: the Engine is closed

	// Only the worker uses these fields.
	cur     *qp
	left    int // packets that cur may still send in its turn
	telling []uint32
	copier  *dma.Copier
	head    scratch
	slots   []slot

	count struct {
		icrc, unknown, malformed atomic.Uint64
	}
	ended struct { // counters of deleted queue pairs; under mu
		out, in control.RDMACounts
	}
}

// New makes an Engine. frames is the greatest number of frames in flight.
func New(c Config, frames int) *Engine {
	e := &Engine{c: c, pds: make(map[uint32]bool), cqs: make(map[uint32]*cq),
		mrs: newSlots[region](10), qps: newSlots[qp](8), slots: make([]slot, frames), copier: dma.NewCopier()}
	if e.c.Random == nil {
		e.c.Random = rand.Reader
	}
	e.qps.setTag(qpnBits, e.random())
	e.qps.next = e.random() % uint32(len(e.qps.slots))
	e.start = time.Now()
	e.users.Init()
	e.paging.init(e)
	for i := range e.slots {
		e.slots[i].init()
	}
	e.timer = time.AfterFunc(time.Hour, e.tick)
	e.timer.Stop()
	return e
}

func (e *Engine) random() uint32 {
	var b [4]byte
	_, _ = io.ReadFull(e.c.Random, b[:])
	return binary.LittleEndian.Uint32(b[:])
}

// Active reports whether there are queue pairs.
func (e *Engine) Active() bool { return e.active.Load() > 0 }

// Reset deletes the objects made by commands. When it returns, no goroutine uses their memory.
func (e *Engine) Reset() {
	var paged []*paged
	e.mu.Lock()
	for i := range e.qps.slots {
		if q := e.qps.slots[i].Load(); q != nil {
			e.endQP(q)
		}
	}
	for i := range e.mrs.slots {
		if r := e.mrs.slots[i].Load(); r != nil {
			e.mrs.del(r.Key)
			if r.pages != nil {
				paged = append(paged, r.pages)
			}
		}
	}
	clear(e.cqs)
	clear(e.pds)
	e.ranges, e.taken = 0, 0
	e.ended.out, e.ended.in = control.RDMACounts{}, control.RDMACounts{}
	e.mu.Unlock()
	for _, p := range paged {
		e.delPaged(p)
	}
	e.paging.reset()
	e.users.Wait()
}

// Close deletes what Reset deletes, and ends the Engine's timer. After it, AddPD and SetMailbox fail (ENODEV).
func (e *Engine) Close() {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	e.Reset()
	e.runMu.Lock()
	defer e.runMu.Unlock()
	e.timer.Stop()
	e.due = math.MinInt64 // no timer can be set again
}

// RDMALimits implements control.RDMA.
func (e *Engine) RDMALimits() (control.RDMALimits, error) {
	return control.RDMALimits{PDs: MaxPDs, MRs: MaxMRs, Ranges: MaxRanges, CQs: MaxCQs, Depth: MaxWRs, QPs: MaxQPs,
		SGEs: control.MaxSGEs, Reads: MaxReads, MTU: e.maxMTU(), Flags: control.RDMAOnDemand, Length: MaxLength,
		Regions: maxPaged, Requests: maxRequests}, nil
}

// maxMTU returns the largest path MTU that fits the link's frames; 0: none.
func (e *Engine) maxMTU() uint16 {
	const most = 40 + 8 + maxExt + icrcLen
	for mtu := uint16(4096); mtu >= 256; mtu /= 2 {
		if uint32(mtu)+most <= uint32(e.c.MTU()) {
			return mtu
		}
	}
	return 0
}

// AddPD implements control.RDMA.
func (e *Engine) AddPD() (uint32, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return 0, fmt.Errorf("the NIC has ended: %w", syscall.ENODEV)
	}
	if len(e.pds) == MaxPDs {
		return 0, fmt.Errorf("pd: there are %d: %w", MaxPDs, syscall.ENOSPC)
	}
	e.lastID++
	e.pds[e.lastID] = true
	return e.lastID, nil
}

// DelPD implements control.RDMA.
func (e *Engine) DelPD(id uint32) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.pds[id] {
		return fmt.Errorf("pd: no %d: %w", id, syscall.ENOENT)
	}
	for i := range e.mrs.slots {
		if r := e.mrs.slots[i].Load(); r != nil && r.PD == id {
			return fmt.Errorf("pd %d: it has mr %#x: %w", id, r.Key, syscall.EBUSY)
		}
	}
	for i := range e.qps.slots {
		if q := e.qps.slots[i].Load(); q != nil && q.pd == id {
			return fmt.Errorf("pd %d: it has queue pair %d: %w", id, q.n, syscall.EBUSY)
		}
	}
	delete(e.pds, id)
	return nil
}

// RDMACounts implements control.RDMA.
func (e *Engine) RDMACounts() (c control.RDMAPortCounts, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	c.Out, c.In = e.ended.out, e.ended.in
	for i := range e.qps.slots {
		if q := e.qps.slots[i].Load(); q != nil {
			q.mu.Lock()
			c.Out.Add(&q.out)
			c.In.Add(&q.in)
			q.mu.Unlock()
		}
	}
	c.ICRC, c.Unknown, c.Malformed = e.count.icrc.Load(), e.count.unknown.Load(), e.count.malformed.Load()
	return c, nil
}

// now returns the time in nanoseconds since New, plus 1.
func (e *Engine) now() int64 { return int64(time.Since(e.start)) + 1 }

func (e *Engine) schedule(q *qp) {
	if q.queued.Swap(true) {
		return
	}
	e.runMu.Lock()
	e.run = append(e.run, q)
	e.runMu.Unlock()
	e.c.Wake()
}

func (e *Engine) tell(id uint32) {
	e.runMu.Lock()
	e.tells = append(e.tells, id)
	e.runMu.Unlock()
	e.c.Wake()
}

func (e *Engine) wakeAt(due int64) {
	e.runMu.Lock()
	defer e.runMu.Unlock()
	if e.due == 0 || due < e.due {
		e.due = due
		e.timer.Reset(max(0, time.Duration(due-e.now())))
	}
}

// tick schedules the queue pairs whose due has passed, does paging's timed work, and sets the timer for the next ones.
func (e *Engine) tick() {
	e.runMu.Lock()
	if e.due < 0 {
		e.runMu.Unlock()
		return
	}
	e.due = 0
	e.runMu.Unlock()
	t, next := e.now(), int64(math.MaxInt64)
	for i := range e.qps.slots {
		q := e.qps.slots[i].Load()
		if q == nil {
			continue
		}
		due := q.due.Load()
		switch {
		case due == 0:
		case due <= t:
			e.schedule(q)
		default:
			next = min(next, due)
		}
	}
	next = min(next, e.paging.tick(t))
	if next != math.MaxInt64 {
		e.wakeAt(max(next, t+int64(tickStep)))
	}
}

const tickStep = 200 * time.Microsecond

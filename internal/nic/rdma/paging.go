package rdma

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/mailbox"
)

// Bounds and times of regions on demand.
const (
	maxPaged    = 16                     // regions of a port
	maxPages    = 1 << 18                // pages in all of these regions: 1 GiB
	maxRequests = 64                     // requests of a port without an answer
	notAgain    = int64(time.Second)     // until a page that was unavailable may be requested again
	askAgain    = 50 * time.Millisecond  // until a request is repeated, as its notice may be lost
	pollBusy    = 30 * time.Microsecond  // poll interval at first, and after an invalidation
	pollIdle    = 200 * time.Microsecond // poll interval after 100 polls without an invalidation
)

// Mailbox is the memory in which a GPU's driver posts invalidations (package internal/mailbox).
type Mailbox interface {
	Poll(f func(mailbox.Request))
	Done(slot int) bool
	Free(slot int) bool
	Alive() bool
	Lost() uint32
	Close()
}

// paging is an Engine's state of pages on demand. Its mu guards the fields from regions to boxes, and the regions'
// fields that change. A goroutine that holds mu takes no other lock of the Engine than runMu.
type paging struct {
	e     *Engine
	count atomic.Int32 // number of regions

	mu       sync.Mutex
	regions  []*paged
	requests []*request // without an answer
	lastID   uint32
	toAsk    []control.PageRequest // requests for which the worker is to call Ask
	starved  []*qp                 // queue pairs that wait because there were maxRequests requests
	pages    int
	boxes    map[uint16]*box

	parked parkedPool
	faults pagingFaults
}

// paged is the page table of a region on demand.
type paged struct {
	key     uint32
	region  uint32
	gpu     uint16
	memory  *dma.Region // memory of the GPU
	off     uint64      // offset of the MR's first byte in the first page
	entries []entry
	waiters []*qp
	dead    bool // the NIC must not use its pages any more (end)
	counts  control.PageCounts
}

type entry struct {
	addr       uint64 // address in RAM, or offset in the GPU's memory
	state      entryState
	writable   bool
	asked      bool   // a request for it has no answer
	generation uint32 // generation of the page's latest invalidation
	retryAt    int64  // the page is not requested again before this time (Engine.now)
}

type entryState uint8

const (
	absent entryState = iota // the NIC never had the page, or has forgotten it
	inRAM
	inGPU
)

type request struct {
	control.PageRequest
	p      *paged
	due    int64
	notify int64
}

const pageSize = 4096

func (p *paging) init(e *Engine) { p.e, p.boxes = e, make(map[uint16]*box) }

func (e *Engine) addPaged(r *region) error {
	g := &e.paging
	if r.Off >= pageSize || r.Len > math.MaxInt64-r.Off {
		return fmt.Errorf("mr on demand: its first byte is at %d of its first page, not 0 to %d: %w", r.Off, pageSize-1,
			syscall.EINVAL)
	}
	pages := (r.Off + r.Len + pageSize - 1) / pageSize
	memory := e.c.GPU(r.GPU)
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case memory == nil || g.boxes[r.GPU] == nil || !g.boxes[r.GPU].m.Alive():
		return fmt.Errorf("mr on demand: GPU %d has no mailbox, or does not belong to this port: %w", r.GPU,
			syscall.ENODEV)
	case len(g.regions) == maxPaged || pages > uint64(maxPages-g.pages):
		return fmt.Errorf("mr on demand: %d of at most %d, and %d pages of at most %d: %w", len(g.regions), maxPaged, g.pages,
			maxPages, syscall.ENOSPC)
	}
	for _, o := range g.regions {
		if o.gpu == r.GPU && o.region == r.Buffer {
			return fmt.Errorf("mr on demand: region %d of GPU %d has one: %w", r.Buffer, r.GPU, syscall.EEXIST)
		}
	}
	r.pages = &paged{region: r.Buffer, gpu: r.GPU, memory: memory, off: r.Off, entries: make([]entry, pages)}
	g.regions = append(g.regions, r.pages)
	g.pages += int(pages)
	g.count.Add(1)
	g.boxes[r.GPU].wake()
	r.whole.Store(true)
	return nil
}

// delPaged deletes a region and its requests, and resumes the queue pairs that wait for its pages.
func (e *Engine) delPaged(p *paged) {
	g := &e.paging
	g.mu.Lock()
	g.regions = slices.DeleteFunc(g.regions, func(o *paged) bool { return o == p })
	g.requests = slices.DeleteFunc(g.requests, func(r *request) bool { return r.p == p })
	g.pages -= len(p.entries)
	g.count.Add(-1)
	waiters := g.wakeAll(p)
	g.mu.Unlock()
	e.resume(waiters)
}

// wakeAll removes and returns the queue pairs that wait for pages of p, and the starved ones. The caller holds mu, and
// passes them to resume after releasing it.
func (g *paging) wakeAll(p *paged) []*qp {
	waiters := append(p.waiters, g.starved...)
	p.waiters, g.starved = nil, nil
	return waiters
}

func (e *Engine) resume(qs []*qp) {
	for _, q := range qs {
		q.mu.Lock()
		q.resume()
		q.mu.Unlock()
		e.schedule(q)
	}
}

func (q *qp) resume() {
	r := &q.req
	if r.waiting && r.again && q.state == control.QPReady {
		q.goBack()
	}
	r.waiting, r.again = false, false
	for i := range q.resp.n {
		q.resp.answers[(q.resp.first+i)%len(q.resp.answers)].waiting = false
	}
	q.resp.parked.waiting = false
}

// places appends the segments of [off, off+n) of a region. If a page is missing and may be requested, places requests
// it, and missing ones behind it up to off+ahead, and makes q wait (awaited). The segments are valid until the caller
// leaves the engine's users.
func (p *paged) places(dst []dma.Segment, q *qp, off, n, ahead uint64, a dma.Access) ([]dma.Segment, outcome) {
	g := &q.e.paging
	g.mu.Lock()
	defer g.mu.Unlock()
	if got := p.look(q, off, n, ahead, a); got != found {
		return dst, got
	}
	var inVRAM, inHost uint64 // counted below: a look-up that fails is repeated
	for pos, end := p.off+off, p.off+off+n; pos < end; {
		in := pos % pageSize
		k := min(pageSize-in, end-pos)
		e := &p.entries[pos/pageSize]
		if e.state == inGPU {
			dst = append(dst, p.memory.Segment(e.addr+in, uint32(k)))
			inVRAM += k
		} else {
			var err error
			if dst, err = q.e.c.Space.TranslateMax(dst, len(dst)+maxPieces, e.addr+in, k, a); err != nil {
				return dst, notToGet
			}
			inHost += k
		}
		pos += k
	}
	p.counts.GPUBytes += inVRAM
	p.counts.HostBytes += inHost
	return dst, found
}

// there does what places does, but finds no segments and counts no bytes.
func (p *paged) there(q *qp, off, n, ahead uint64, a dma.Access) outcome {
	g := &q.e.paging
	g.mu.Lock()
	defer g.mu.Unlock()
	return p.look(q, off, n, ahead, a)
}

// look is there for a caller that holds mu.
func (p *paged) look(q *qp, off, n, ahead uint64, a dma.Access) outcome {
	if p.dead {
		return notToGet
	}
	first := p.off + off
	for i := first / pageSize; i*pageSize < first+n; i++ {
		e := &p.entries[i]
		if p.usable(q.e, e, a) {
			continue
		}
		if e.retryAt > q.e.now() {
			return notToGet
		}
		q.e.paging.want(p, q, i, (first+max(n, ahead)+pageSize-1)/pageSize-i, a)
		return awaited
	}
	return found
}

// usable reports whether a page's entry allows the access. A page in a GPU that the NIC does not reach has to
// move to RAM.
func (p *paged) usable(e *Engine, t *entry, a dma.Access) bool {
	switch {
	case t.state == absent || a == dma.Write && !t.writable:
		return false
	case t.state == inGPU:
		return p.direct(e)
	}
	return true
}

func (p *paged) direct(e *Engine) bool {
	seg := [1]dma.Segment{p.memory.Segment(0, 1)}
	return e.c.Direct(seg[:])
}

// want makes q wait for page i. Unless the page is requested already, or there are maxRequests requests, want requests
// the page and the unusable ones that follow it, at most n in all. The caller holds mu.
func (g *paging) want(p *paged, q *qp, i, n uint64, a dma.Access) {
	if p.entries[i].asked {
		p.wait(q)
		return
	}
	if len(g.requests) == maxRequests {
		if !slices.Contains(g.starved, q) {
			g.starved = append(g.starved, q)
		}
		return
	}
	end := min(i+min(n, control.MaxPages), uint64(len(p.entries)))
	ask := i
	for ; ask < end && !p.entries[ask].asked && !p.usable(g.e, &p.entries[ask], a); ask++ {
		p.entries[ask].asked = true
	}
	g.lastID++
	if g.lastID == 0 {
		g.lastID++
	}
	t := g.e.now()
	r := &request{p: p, due: t + int64(limits.Page.Here()), notify: t + int64(askAgain)}
	r.PageRequest = control.PageRequest{ID: g.lastID, Key: p.key, Region: p.region, First: i,
		Count: uint16(ask - i), Write: a == dma.Write, InRAM: !p.direct(g.e)}
	g.requests = append(g.requests, r)
	p.counts.Requests++
	g.toAsk = append(g.toAsk, r.PageRequest)
	p.wait(q)
	g.e.wakeAt(r.notify)
	g.e.c.Wake()
}

func (p *paged) wait(q *qp) {
	if !slices.Contains(p.waiters, q) {
		p.waiters = append(p.waiters, q)
	}
}

func (g *paging) askAll() {
	if g.count.Load() == 0 {
		return
	}
	g.mu.Lock()
	ask := g.toAsk
	g.toAsk = nil
	g.mu.Unlock()
	for _, r := range ask {
		g.e.c.Ask(r)
	}
}

func (g *paging) pending() bool {
	if g.count.Load() == 0 {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.toAsk) > 0
}

// tick repeats requests, and ends requests that have timed out. It returns when to call it again.
func (g *paging) tick(t int64) (next int64) {
	next = math.MaxInt64
	if g.count.Load() == 0 {
		return next
	}
	g.mu.Lock()
	var waiters []*qp
	var again bool
	g.requests = slices.DeleteFunc(g.requests, func(r *request) bool {
		if r.due <= t {
			r.p.answer(r, func(e *entry) { e.retryAt = t + notAgain })
			r.p.counts.Refused += uint64(r.Count)
			waiters = append(waiters, g.wakeAll(r.p)...)
			return true
		}
		if r.notify <= t {
			r.notify = t + int64(askAgain)
			g.toAsk = append(g.toAsk, r.PageRequest)
			again = true
		}
		next = min(next, r.due, r.notify)
		return false
	})
	g.mu.Unlock()
	g.e.resume(waiters)
	if again {
		g.e.c.Wake()
	}
	return next
}

func (p *paged) answer(r *request, f func(e *entry)) {
	for i := range uint64(r.Count) {
		e := &p.entries[r.First+i]
		e.asked = false
		f(e)
	}
}

// PageRequests implements control.RDMA.
func (e *Engine) PageRequests() (rs []control.PageRequest, err error) {
	g := &e.paging
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, r := range g.requests {
		rs = append(rs, r.PageRequest)
	}
	slices.SortFunc(rs, func(a, b control.PageRequest) int { return int(int64(a.ID) - int64(b.ID)) })
	return rs, nil
}

// Bits of an entry of an answer, in the driver's format (guest-images/vnicgpu/vnicgpu.h).
const (
	answerKind     = 3
	answerRAM      = 1
	answerGPU      = 2
	answerWritable = 4
	answerErrno    = 16 // number of the errno's first bit, in an entry without a page
)

// AnswerPages implements control.RDMA.
func (e *Engine) AnswerPages(a control.PageAnswer) error {
	g := &e.paging
	if g.faults.dropAnswer() {
		return nil
	}
	g.mu.Lock()
	i := slices.IndexFunc(g.requests, func(r *request) bool { return r.ID == a.ID })
	if i < 0 {
		g.mu.Unlock()
		return fmt.Errorf("pages: no request %d: %w", a.ID, syscall.ENOENT)
	}
	r := g.requests[i]
	if a.Errno == 0 && len(a.Entries) != int(r.Count) {
		g.mu.Unlock()
		return fmt.Errorf("pages: %d entries, and request %d is for %d: %w", len(a.Entries), a.ID, r.Count, syscall.EINVAL)
	}
	g.requests = slices.Delete(g.requests, i, i+1)
	p := r.p
	p.counts.Answers++
	retry := e.now() + notAgain
	next := 0
	p.answer(r, func(t *entry) {
		v := uint64(0)
		if a.Errno == 0 {
			v = a.Entries[next]
			next++
		}
		p.learn(t, v, a.Generation, retry)
	})
	waiters := g.wakeAll(p)
	g.mu.Unlock()
	e.resume(waiters)
	return nil
}

func (p *paged) learn(t *entry, v uint64, generation uint32, retry int64) {
	addr := v &^ (pageSize - 1)
	switch {
	case v&answerKind == answerRAM || v&answerKind == answerGPU:
		if int32(generation-t.generation) < 0 {
			p.counts.Stale++ // an invalidation has overtaken the answer
			return
		}
	case v&answerKind == 0 && syscall.Errno(v>>answerErrno) == syscall.EAGAIN:
		return // the page changes too fast; it may be requested again at once
	default:
		t.retryAt = retry
		p.counts.Refused++
		return
	}
	t.retryAt, t.writable = 0, v&answerWritable != 0
	if v&answerKind == answerRAM {
		t.state, t.addr = inRAM, addr
		p.counts.MapsHost++
		return
	}
	if addr >= p.memory.Size() {
		t.state, t.retryAt = absent, retry
		p.counts.Refused++
		return
	}
	t.state, t.addr = inGPU, addr
	p.counts.MapsGPU++
}

// PageCounts implements control.RDMA.
func (e *Engine) PageCounts(key uint32) (c control.PageCounts, err error) {
	token := e.users.Enter()
	defer e.users.Leave(token)
	r := e.regionOf(key)
	if r == nil || r.pages == nil {
		return c, fmt.Errorf("mr: no key %#x of a region on demand: %w", key, syscall.ENOENT)
	}
	g := &e.paging
	g.mu.Lock()
	defer g.mu.Unlock()
	return r.pages.counts, nil
}

func (e *Engine) isPaged(key uint32) bool {
	if e.paging.count.Load() == 0 {
		return false
	}
	r := e.regionOf(key)
	return r != nil && r.pages != nil
}

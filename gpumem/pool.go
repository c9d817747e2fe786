package gpumem

import (
	"fmt"
	"slices"
	"sync"
	"syscall"
)

// FramePages is an upper bound of the pages of a frame of up to 64 KiB.
const FramePages = 1<<16/PageSize + 2

// Range is [Off, Off+Len) of a GPU's memory.
type Range struct {
	GPU int
	Off uint64
	Len uint32
}

// Piece is payload in a page of a pool: Len bytes from byte Off of page number Page on.
type Piece struct {
	Page uint32
	Off  uint16
	Len  uint16
}

// Values of page.refs for a page without references.
const (
	pageFree   = 0
	pagePosted = -1
)

type page struct {
	refs   int32 // pageFree, pagePosted or the number of references: received pieces and tokens
	tokens int32 // how many of refs are tokens
}

// Pool has the pages of one receive binding, in the guest; the binding's queues share it. Methods take no other
// lock under its lock.
//
// A page is free, then posted to the NIC, then has references: of the stack, which has received a frame, and of
// tokens. When the last reference goes, or the page comes back from the NIC unused, it is free again.
type Pool struct {
	gpu int
	off uint64 // where page 0 begins in the GPU
	// reserve is how many pages must be left, free or posted, for SupplyOK.
	reserve int
	refill  func(queue int)
	ended   func()

	mu      sync.Mutex
	pages   []page
	free    []uint32 // TakePages takes the last one first
	posted  int
	held    int   // pages with tokens
	waiting []int // queues that got too few pages
	closed  bool
	emptied bool
}

// NewPool returns a pool over [off, off+size) of a GPU, with all pages free. Until Close the pool calls refill for a
// queue that got too few pages, when pages have become free by Discard, Release or returned tokens. It calls ended
// once, when it is closed and all its pages are free. It does not hold its lock then, but Tokens.Put, which returns
// tokens, holds the lock of Tokens. EINVAL: the range is not whole pages.
func NewPool(gpu int, off, size uint64, refill func(queue int), ended func()) (*Pool, error) {
	if size == 0 || size%PageSize != 0 || off%PageSize != 0 || size/PageSize > 1<<30 {
		return nil, fmt.Errorf("page pool over [%#x, +%#x): not whole pages of %d: %w", off, size, PageSize, syscall.EINVAL)
	}
	n := int(size / PageSize)
	p := &Pool{
		gpu: gpu, off: off, pages: make([]page, n), free: make([]uint32, n), reserve: max(n/8, 2*FramePages),
		refill: refill, ended: ended,
	}
	for i := range p.free {
		p.free[i] = uint32(n - 1 - i)
	}
	return p, nil
}

// Pages returns the number of pages.
func (p *Pool) Pages() int { return len(p.pages) }

// TakePages takes up to len(dst) free pages to post to a queue, and writes their offsets in the GPU to dst. It
// returns their number, 0 after Close. If they are fewer, a pool that is not closed calls refill for the queue later.
func (p *Pool) TakePages(queue int, dst []uint64) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := min(len(dst), len(p.free))
	if p.closed {
		n = 0
	}
	for i := range n {
		pg := p.free[len(p.free)-1-i]
		p.pages[pg].refs = pagePosted
		dst[i] = p.off + uint64(pg)*PageSize
	}
	p.free = p.free[:len(p.free)-n]
	p.posted += n
	if n < len(dst) && !slices.Contains(p.waiting, queue) {
		p.waiting = append(p.waiting, queue)
	}
	return n
}

// ReturnPages frees posted pages that the device has not used. It does not lead to a call of refill.
func (p *Pool) ReturnPages(queue int, offs []uint64) {
	p.mu.Lock()
	for _, off := range offs {
		if i, ok := p.index(off); ok {
			p.takeBackLocked(i)
		}
	}
	f := p.emptyLocked()
	p.mu.Unlock()
	f()
}

func (p *Pool) takeBackLocked(i uint32) {
	if p.pages[i].refs == pagePosted {
		p.posted--
		p.pages[i].refs = pageFree
		p.free = append(p.free, i)
	}
}

func (p *Pool) index(off uint64) (uint32, bool) {
	if off < p.off || (off-p.off)/PageSize >= uint64(len(p.pages)) {
		return 0, false
	}
	return uint32((off - p.off) / PageSize), true
}

// Supply is how well a pool can take arriving data.
type Supply uint8

const (
	SupplyOK    Supply = iota
	SupplyLow          // the stack should refuse out-of-order data
	SupplyEmpty        // the stack should accept only the stream's next segment
)

// segmentPages is the most pages of a segment, with an MTU of at most 9,000.
const segmentPages = 4

// Supply returns how well the pool can take more data after an arriving frame of so many pages. SupplyEmpty: fewer
// than segmentPages pages are then free or posted. SupplyLow: fewer than the reserve, or data without tokens has more
// than half of all pages.
func (p *Pool) Supply(frame int) Supply {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch spare := len(p.free) + p.posted - frame; {
	case spare < segmentPages:
		return SupplyEmpty
	case spare < p.reserve || 2*(spare+p.held) < len(p.pages):
		return SupplyLow
	}
	return SupplyOK
}

// Window returns the payload that the pool can hold if each page has mss bytes, or PageSize if that is less.
func (p *Pool) Window(mss int) int { return len(p.pages) * min(mss, PageSize) }

// Receive appends the first n bytes of the ranges that the device has filled to dst[:0], as pieces, with a reference
// of the stack to each page. It returns false, and leaves the pages posted, if the device, which is not trusted, names
// a range that is not within one posted page, a page twice, or fewer than n bytes.
func (p *Pool) Receive(dst []Piece, ranges []Range, n int) ([]Piece, bool) {
	dst = dst[:0]
	p.mu.Lock()
	defer p.mu.Unlock()
	ok := true
	for _, r := range ranges {
		i, in := p.index(r.Off)
		off := r.Off % PageSize
		if !in || r.GPU != p.gpu || uint64(r.Len) > PageSize-off || p.pages[i].refs != pagePosted {
			ok = false
			break
		}
		p.pages[i].refs = 1
		dst = append(dst, Piece{Page: i, Off: uint16(off), Len: uint16(min(int(r.Len), n))})
		n -= min(int(r.Len), n)
	}
	if !ok || n > 0 {
		for _, pc := range dst {
			p.pages[pc.Page].refs = pagePosted
		}
		return dst[:0], false
	}
	p.posted -= len(dst)
	return dst, true
}

// Discard frees the posted pages of a frame that the stack does not want.
func (p *Pool) Discard(ranges []Range) {
	p.mu.Lock()
	for _, r := range ranges {
		if i, ok := p.index(r.Off); ok && r.GPU == p.gpu {
			p.takeBackLocked(i)
		}
	}
	p.unlockAndNotify()
}

// Release drops the stack's references to pages.
func (p *Pool) Release(pieces []Piece) {
	p.mu.Lock()
	for _, pc := range pieces {
		p.unrefLocked(pc.Page)
	}
	p.unlockAndNotify()
}

// hold adds references of tokens to pages that have references already.
func (p *Pool) hold(pages []uint32) {
	p.mu.Lock()
	for _, pg := range pages {
		p.pages[pg].refs++
		if p.pages[pg].tokens++; p.pages[pg].tokens == 1 {
			p.held++
		}
	}
	p.mu.Unlock()
}

func (p *Pool) unhold(pages []uint32) {
	p.mu.Lock()
	for _, pg := range pages {
		if p.pages[pg].tokens--; p.pages[pg].tokens == 0 {
			p.held--
		}
		p.unrefLocked(pg)
	}
	p.unlockAndNotify()
}

func (p *Pool) unrefLocked(pg uint32) {
	if p.pages[pg].refs--; p.pages[pg].refs == pageFree {
		p.free = append(p.free, pg)
	}
}

// unlockAndNotify unlocks the pool, and then makes the due calls of refill and ended.
func (p *Pool) unlockAndNotify() {
	var queues [8]int
	notify := queues[:0]
	if len(p.waiting) > 0 && len(p.free) > 0 && !p.closed {
		notify = append(notify, p.waiting...)
		p.waiting = p.waiting[:0]
	}
	f := p.emptyLocked()
	p.mu.Unlock()
	for _, q := range notify {
		p.refill(q)
	}
	f()
}

// Close ends the pool. stopped means that the device does not use the queues any more: posted pages become
// free. Otherwise they stay posted until they come back, or until another Close with stopped.
func (p *Pool) Close(stopped bool) {
	p.mu.Lock()
	p.closed = true
	for i := range p.pages {
		if stopped && p.posted > 0 {
			p.takeBackLocked(uint32(i))
		}
	}
	p.unlockAndNotify()
}

func (p *Pool) emptyLocked() func() {
	if p.closed && !p.emptied && len(p.free) == len(p.pages) {
		p.emptied = true
		return p.ended
	}
	return func() {}
}

// PoolStats counts the pages of a pool by state; each page is in one of the four.
type PoolStats struct {
	Pages  int
	Free   int
	Posted int // the NIC may write to them
	Queued int // only the stack has references
	Held   int // tokens have references
}

// Stats returns a snapshot.
func (p *Pool) Stats() PoolStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return PoolStats{
		Pages: len(p.pages), Free: len(p.free), Posted: p.posted, Queued: len(p.pages) - len(p.free) - p.posted - p.held,
		Held: p.held,
	}
}

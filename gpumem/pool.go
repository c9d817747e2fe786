package gpumem

import (
	"fmt"
	"slices"
	"sync"
	"syscall"
)

// FramePages is more than the pages of the largest frame, of 64 KiB.
const FramePages = 1<<16/PageSize + 2

// Range is a piece of a GPU's memory.
type Range struct {
	GPU int
	Off uint64
	Len uint32
}

// Piece is a part of a page: payload, as the device wrote it.
type Piece struct {
	Page uint32
	Off  uint16
	Len  uint16 // at most PageSize
}

// page states: how many hold it, or one of these.
const (
	pageFree   = 0
	pagePosted = -1
)

type page struct {
	refs   int32 // pagePosted, pageFree, or the queued frames and tokens that hold it
	tokens int32 // of refs
}

// Pool is the pages of one receive binding, in the guest, shared by the binding's queues. Its lock
// is held for table work only, and no other is taken under it.
//
// A page is free, then posted to the NIC, then, once the NIC has written to it, held by references:
// of the stack, which has a frame queued there, and of tokens, which a user has. With the last
// reference it is free. When the pool is exhausted the NIC finds no buffer and drops whole frames,
// which it counts.
type Pool struct {
	gpu int
	off uint64 // of page 0 in the GPU
	// reserve is how many pages must be free or posted for data out of order to be kept, so that the segment that is
	// missing always finds a buffer.
	reserve int
	refill  func(queue int)
	ended   func()

	mu      sync.Mutex
	pages   []page
	free    []uint32 // last out first
	posted  int
	held    int   // pages with tokens
	waiting []int // queues that got fewer pages than they asked for
	closed  bool
	emptied bool
}

// NewPool returns a pool over [off, off+size) of a GPU, all pages free. refill is called when there
// is a page for a queue that got too few; ended once, when a closed pool has all its pages back.
// Both are called without the pool's lock.
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

// Pages is how many pages the pool has.
func (p *Pool) Pages() int { return len(p.pages) }

// TakePages takes free pages, to be posted to a queue, and returns how many it found. dst gets offsets in the GPU.
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

// ReturnPages takes pages back that the device did not use.
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

// takeBackLocked makes a page free if it is posted.
func (p *Pool) takeBackLocked(i uint32) {
	if p.pages[i].refs == pagePosted {
		p.posted--
		p.pages[i].refs = pageFree
		p.free = append(p.free, i)
	}
}

// index finds the page of an offset in the GPU.
func (p *Pool) index(off uint64) (uint32, bool) {
	if off < p.off || (off-p.off)/PageSize >= uint64(len(p.pages)) {
		return 0, false
	}
	return uint32((off - p.off) / PageSize), true
}

// Supply says how well a pool is off.
type Supply uint8

const (
	SupplyOK    Supply = iota
	SupplyLow          // data out of order is to be refused
	SupplyEmpty        // only the segment that is missing is to be taken
)

// segmentPages hold one segment of a jumbo frame (9,000 bytes): what a sender sends again is no longer.
const segmentPages = 4

// Supply judges the pool as it will be when a frame that has come in keeps its pages. It is Low when the reserve is
// touched, or when queued data has half of the pages. The other half is for tokens and for what comes in order: an
// application that waits for missing data with up to so many tokens in its hands gets it. It is Empty when what is left
// would not hold the segment that is missing. Not before: a sender whose segments in order are refused gets one through
// in each of its retransmission timeouts.
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

// Window is the receive buffer that fits the pool, if each page has a segment of mss bytes.
func (p *Pool) Window(mss int) int { return len(p.pages) * min(mss, PageSize) }

// Receive turns the device's ranges into pieces, n bytes in all, and takes a reference on each page for the stack. The
// device is not trusted: if it names a page that it did not get from us, or too few bytes, nothing is taken.
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

// Discard takes back the pages of a frame that is not delivered, those that the device really had.
func (p *Pool) Discard(ranges []Range) {
	p.mu.Lock()
	for _, r := range ranges {
		if i, ok := p.index(r.Off); ok && r.GPU == p.gpu {
			p.takeBackLocked(i)
		}
	}
	p.unlockAndTell()
}

// Release drops the stack's references of a frame.
func (p *Pool) Release(pieces []Piece) {
	p.mu.Lock()
	for _, pc := range pieces {
		p.unrefLocked(pc.Page)
	}
	p.unlockAndTell()
}

// hold adds a token's reference to each of the pages, which are held already.
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

// unhold drops the references of tokens.
func (p *Pool) unhold(pages []uint32) {
	p.mu.Lock()
	for _, pg := range pages {
		if p.pages[pg].tokens--; p.pages[pg].tokens == 0 {
			p.held--
		}
		p.unrefLocked(pg)
	}
	p.unlockAndTell()
}

func (p *Pool) unrefLocked(pg uint32) {
	if p.pages[pg].refs--; p.pages[pg].refs == pageFree {
		p.free = append(p.free, pg)
	}
}

// unlockAndTell calls refill for queues that wait for pages, and ended for a closed pool that is empty.
func (p *Pool) unlockAndTell() {
	var queues [8]int
	tell := queues[:0]
	if len(p.waiting) > 0 && len(p.free) > 0 && !p.closed {
		tell = append(tell, p.waiting...)
		p.waiting = p.waiting[:0]
	}
	f := p.emptyLocked()
	p.mu.Unlock()
	for _, q := range tell {
		p.refill(q)
	}
	f()
}

// Close ends the pool: it gives nothing out any more. If the device has stopped using its queues,
// what it did not return is free; else it may still write there, and posted pages stay so until
// they are returned, received, or until Close is called again.
func (p *Pool) Close(stopped bool) {
	p.mu.Lock()
	p.closed = true
	for i := range p.pages {
		if stopped && p.posted > 0 {
			p.takeBackLocked(uint32(i))
		}
	}
	f := p.emptyLocked()
	p.mu.Unlock()
	f()
}

func (p *Pool) emptyLocked() func() {
	if p.closed && !p.emptied && len(p.free) == len(p.pages) {
		p.emptied = true
		return p.ended
	}
	return func() {}
}

// PoolStats counts pages; a page is in one state.
type PoolStats struct {
	Pages  int
	Free   int
	Posted int // the NIC may write to it
	Queued int // referenced by the stack only
	Held   int // a user has a token
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

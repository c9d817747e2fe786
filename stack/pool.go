package stack

import (
	"slices"
	"sync"

	"vnic.dev/vnic/driver"
)

const (
	pageSize   = driver.PageSize
	framePages = slotSize/pageSize + 2 // the largest frame, with room to spare
)

// piece is a part of a page: payload, as the device wrote it.
type piece struct {
	page uint32
	off  uint16
	len  uint16 // at most pageSize
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

// pool is the pages of one receive binding, shared by its queues. Its lock is held for table work only, and no other
// is taken under it.
type pool struct {
	gpu int
	off uint64 // of page 0 in the GPU
	// reserve is how many pages must be free or posted for data out of order to be kept, so that the segment that is
	// missing always finds a buffer.
	reserve int
	refill  func(queue int)
	empty   func() // all pages of a closed pool are free; called once

	mu      sync.Mutex
	pages   []page
	free    []uint32 // last out first
	posted  int
	held    int   // pages with tokens
	hungry  []int // queues that got fewer pages than they asked for
	closed  bool
	emptied bool
}

func newPool(gpu int, off, size uint64) *pool {
	n := int(size / pageSize)
	p := &pool{
		gpu: gpu, off: off, pages: make([]page, n), free: make([]uint32, n),
		reserve: max(n/8, 2*framePages),
	}
	for i := range p.free {
		p.free[i] = uint32(n - 1 - i)
	}
	return p
}

// TakePages implements driver.PageSource.
func (p *pool) TakePages(queue int, dst []uint64) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := min(len(dst), len(p.free))
	if p.closed {
		n = 0
	}
	for i := range n {
		pg := p.free[len(p.free)-1-i]
		p.pages[pg].refs = pagePosted
		dst[i] = p.off + uint64(pg)*pageSize
	}
	p.free = p.free[:len(p.free)-n]
	p.posted += n
	if n < len(dst) && !slices.Contains(p.hungry, queue) {
		p.hungry = append(p.hungry, queue)
	}
	return n
}

// ReturnPages implements driver.PageSource: pages that the device did not use.
func (p *pool) ReturnPages(queue int, offs []uint64) {
	p.mu.Lock()
	for _, off := range offs {
		if i, ok := p.index(off); ok && p.pages[i].refs == pagePosted {
			p.posted--
			p.pages[i].refs = pageFree
			p.free = append(p.free, i)
		}
	}
	f := p.emptyLocked()
	p.mu.Unlock()
	f()
}

// index finds the page of an offset in the GPU.
func (p *pool) index(off uint64) (uint32, bool) {
	if off < p.off || (off-p.off)/pageSize >= uint64(len(p.pages)) {
		return 0, false
	}
	return uint32((off - p.off) / pageSize), true
}

// supply says how well a pool is off.
type supply uint8

const (
	plenty supply = iota
	low           // data out of order is refused
	dry           // only the segment that is missing is taken
)

// supply is low when the reserve is touched, or when queued data has half of the pages. The other half is for tokens and
// for what comes in order: an application that waits for missing data with up to so many tokens in its hands gets it.
func (p *pool) supply() supply {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch spare := len(p.free) + p.posted; {
	case spare < framePages:
		return dry
	case spare < p.reserve || 2*(spare+p.held) < len(p.pages):
		return low
	}
	return plenty
}

// window is the receive buffer that fits the pool, if each page has a segment of mss bytes.
func (p *pool) window(mss int) int { return len(p.pages) * min(mss, pageSize) }

// receive turns the device's ranges into pieces, n bytes in all, and takes a reference on each page for the stack. The
// device is not trusted: if it names a page that it did not get from us, or too few bytes, nothing is taken.
func (p *pool) receive(dst []piece, ranges []driver.Range, n int) ([]piece, bool) {
	dst = dst[:0]
	p.mu.Lock()
	defer p.mu.Unlock()
	ok := true
	for _, r := range ranges {
		i, in := p.index(r.Off)
		off := r.Off % pageSize
		if !in || r.GPU != p.gpu || uint64(r.Len) > pageSize-off || p.pages[i].refs != pagePosted {
			ok = false
			break
		}
		p.pages[i].refs = 1
		dst = append(dst, piece{page: i, off: uint16(off), len: uint16(min(int(r.Len), n))})
		n -= min(int(r.Len), n)
	}
	if !ok || n > 0 {
		for _, pc := range dst {
			p.pages[pc.page].refs = pagePosted
		}
		return dst[:0], false
	}
	p.posted -= len(dst)
	return dst, true
}

// discard takes back the pages of a frame that is not delivered, those that the device really had.
func (p *pool) discard(ranges []driver.Range) {
	p.mu.Lock()
	for _, r := range ranges {
		if i, ok := p.index(r.Off); ok && r.GPU == p.gpu && p.pages[i].refs == pagePosted {
			p.posted--
			p.pages[i].refs = pageFree
			p.free = append(p.free, i)
		}
	}
	p.unlockAndTell()
}

// release drops the stack's references of a frame.
func (p *pool) release(pieces []piece) {
	p.mu.Lock()
	for _, pc := range pieces {
		p.unrefLocked(pc.page)
	}
	p.unlockAndTell()
}

// hold adds a token's reference to each of the pages, which are held already.
func (p *pool) hold(pages []uint32) {
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
func (p *pool) unhold(pages []uint32) {
	p.mu.Lock()
	for _, pg := range pages {
		if p.pages[pg].tokens--; p.pages[pg].tokens == 0 {
			p.held--
		}
		p.unrefLocked(pg)
	}
	p.unlockAndTell()
}

func (p *pool) unrefLocked(pg uint32) {
	if p.pages[pg].refs--; p.pages[pg].refs == pageFree {
		p.free = append(p.free, pg)
	}
}

// unlockAndTell wakes queues that wait for pages, and whoever waits for a closed pool to be empty.
func (p *pool) unlockAndTell() {
	var queues [8]int
	tell := queues[:0]
	if len(p.hungry) > 0 && len(p.free) > 0 && !p.closed {
		tell = append(tell, p.hungry...)
		p.hungry = p.hungry[:0]
	}
	f := p.emptyLocked()
	p.mu.Unlock()
	for _, q := range tell {
		p.refill(q)
	}
	f()
}

// close takes back what a device that has given up its queues did not return, and gives nothing out any more. empty is
// called when the last page is back.
func (p *pool) close() {
	p.mu.Lock()
	p.closed = true
	for i := range p.pages {
		if p.posted > 0 && p.pages[i].refs == pagePosted {
			p.posted--
			p.pages[i].refs = pageFree
			p.free = append(p.free, uint32(i))
		}
	}
	f := p.emptyLocked()
	p.mu.Unlock()
	f()
}

func (p *pool) emptyLocked() func() {
	if p.closed && !p.emptied && len(p.free) == len(p.pages) {
		p.emptied = true
		return p.empty
	}
	return func() {}
}

// counts splits the pages by state.
func (p *pool) counts() (free, posted, queued, held int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.free), p.posted, len(p.pages) - len(p.free) - p.posted - p.held, p.held
}

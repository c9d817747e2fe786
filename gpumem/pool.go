package gpumem

import (
	"fmt"
	"math/bits"
	"sync"
	"syscall"
)

// Pool is the pages of one receive binding, in the guest. It may be used by many goroutines at once.
//
// A page is free, then posted to the NIC, then, once the NIC wrote to it, held by references: of the stack, which has
// bytes of it queued, and of tokens, which a user has. With the last reference it is free. Two frags of one page are two
// references. Pages are taken lowest first, as gen_pool does (lib/genalloc.c), so offsets are dense but not monotonic.
type Pool struct {
	off uint64 // of page 0 in the GPU
	n   int

	mu     sync.Mutex
	free   bitmap // under mu
	pages  []page // under mu
	counts PoolStats
	dry    bool   // under mu: somebody was told that there is nothing
	notify func() // under mu
}

type page struct {
	refs   int32 // 0: free; -1: posted; else references
	tokens int32 // of refs
}

const posted = -1

// NewPool returns a pool over [off, off+size) of a GPU, all pages free.
func NewPool(off, size uint64) (*Pool, error) {
	if size == 0 || size%PageSize != 0 || off%PageSize != 0 || size/PageSize > 1<<30 {
		return nil, fmt.Errorf("page pool over [%#x, +%#x): not whole pages of %d: %w", off, size, PageSize, syscall.EINVAL)
	}
	n := int(size / PageSize)
	p := &Pool{off: off, n: n, free: newBitmap(n), pages: make([]page, n)}
	for i := range n {
		p.free.set(i)
	}
	p.counts.Pages, p.counts.Free = n, n
	return p, nil
}

// SetNotify sets what is called, without locks held, when there is a free page again after Take found too few.
func (p *Pool) SetNotify(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.notify = f
}

// Take takes free pages, lowest first, to be posted to the NIC, and returns how many it found. dst gets offsets in the GPU.
func (p *Pool) Take(dst []uint64) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for ; n < len(dst); n++ {
		i, ok := p.free.takeFirst()
		if !ok {
			p.dry = true
			p.counts.Dry++
			break
		}
		p.pages[i].refs = posted
		dst[n] = p.off + uint64(i)*PageSize
	}
	p.counts.Free -= n
	p.counts.Posted += n
	return n
}

// Put returns posted pages that the NIC did not write (a stopped queue, or buffers of a chain that were not needed).
func (p *Pool) Put(offs []uint64) error {
	return p.change(func() error {
		for _, off := range offs {
			g, i, err := p.page(off)
			if err != nil {
				return err
			}
			if g.refs != posted {
				return p.wrong("put", off, g)
			}
			p.counts.Posted--
			p.release(g, i)
		}
		return nil
	})
}

// Filled says that the NIC wrote to a posted page: it is the stack's now, with one reference.
func (p *Pool) Filled(off uint64) error {
	return p.change(func() error {
		g, _, err := p.page(off)
		if err == nil && g.refs != posted {
			err = p.wrong("filled", off, g)
		}
		if err != nil {
			return err
		}
		g.refs = 1
		p.counts.Posted--
		p.counts.Queued++
		return nil
	})
}

// Hold adds a reference of the stack to a page with references; off may be anywhere in it.
func (p *Pool) Hold(off uint64) error { return p.change(func() error { return p.hold(off, 0) }) }

// Drop takes a reference of the stack away.
func (p *Pool) Drop(off uint64) error { return p.change(func() error { return p.drop(off, 0) }) }

func (p *Pool) hold(off uint64, tokens int32) error {
	g, _, err := p.page(off)
	if err == nil && g.refs <= 0 {
		err = p.wrong("held", off, g)
	}
	if err != nil {
		return err
	}
	g.refs++
	if tokens > 0 && g.tokens == 0 {
		p.counts.Queued--
		p.counts.Held++
	}
	g.tokens += tokens
	return nil
}

func (p *Pool) drop(off uint64, tokens int32) error {
	g, i, err := p.page(off)
	if err == nil && (g.refs <= 0 || g.tokens < tokens || tokens == 0 && g.refs == g.tokens) {
		err = p.wrong("dropped", off, g)
	}
	if err != nil {
		return err
	}
	if tokens > 0 && g.tokens == tokens {
		p.counts.Held--
		p.counts.Queued++
	}
	g.tokens -= tokens
	if g.refs--; g.refs == 0 {
		p.counts.Queued--
		p.release(g, i)
	}
	return nil
}

// release makes a page free; under mu.
func (p *Pool) release(g *page, i int) {
	*g = page{}
	p.free.set(i)
	p.counts.Free++
}

// change does f under mu, and tells who waits if pages came free.
func (p *Pool) change(f func() error) error {
	p.mu.Lock()
	err := f()
	tell := p.notify
	if !p.dry || p.counts.Free == 0 {
		tell = nil
	}
	if tell != nil {
		p.dry = false
	}
	p.mu.Unlock()
	if tell != nil {
		tell()
	}
	return err
}

func (p *Pool) page(off uint64) (*page, int, error) {
	i := (off - p.off) / PageSize
	if off < p.off || i >= uint64(p.n) {
		return nil, 0, fmt.Errorf("offset %#x is not in the page pool [%#x, +%#x): %w", off, p.off, uint64(p.n)*PageSize, syscall.EFAULT)
	}
	return &p.pages[i], int(i), nil
}

func (p *Pool) wrong(what string, off uint64, g *page) error {
	state := fmt.Sprintf("has %d references, %d of them tokens", g.refs, g.tokens)
	switch g.refs {
	case 0:
		state = "is free"
	case posted:
		state = "is posted"
	}
	return fmt.Errorf("page of offset %#x cannot be %s: it %s: %w", off, what, state, syscall.EINVAL)
}

// PoolStats counts pages; a page is in one state.
type PoolStats struct {
	Pages  int
	Free   int
	Posted int    // the NIC may write to it
	Queued int    // referenced by the stack only
	Held   int    // a user has a token
	Dry    uint64 // calls of Take that got fewer pages than asked for
}

// Stats returns a snapshot.
func (p *Pool) Stats() PoolStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counts
}

// bitmap is a set of small numbers that finds its least one fast: sum has a bit for each word of words that is not 0.
type bitmap struct {
	words, sum []uint64
	low        int // no word of sum below it has a bit
}

func newBitmap(n int) bitmap {
	words := (n + 63) / 64
	return bitmap{words: make([]uint64, words), sum: make([]uint64, (words+63)/64)}
}

func (b *bitmap) set(i int) {
	b.words[i/64] |= 1 << (i % 64)
	b.sum[i/4096] |= 1 << (i / 64 % 64)
	b.low = min(b.low, i/4096)
}

func (b *bitmap) takeFirst() (int, bool) {
	for ; b.low < len(b.sum); b.low++ {
		if s := b.sum[b.low]; s != 0 {
			w := b.low*64 + bits.TrailingZeros64(s)
			i := w*64 + bits.TrailingZeros64(b.words[w])
			if b.words[w] &= b.words[w] - 1; b.words[w] == 0 {
				b.sum[b.low] &= b.sum[b.low] - 1
			}
			return i, true
		}
	}
	return 0, false
}

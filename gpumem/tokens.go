package gpumem

import (
	"math/bits"
	"sync"
)

// TokenRange is Count tokens from Start (struct dmabuf_token).
type TokenRange struct{ Start, Count uint32 }

// Tokens has a connection's tokens, by which its user returns pages. Issue takes the lowest free token, from 1,
// as Linux does (net/ipv4/tcp.c: tcp_xa_pool_refill). A goroutine may take a pool's lock under the lock
// of Tokens, but not the other way around.
type Tokens struct {
	mu     sync.Mutex
	closed bool
	held   []held   // by token - 1; pool is nil for a free token
	free   []uint64 // a bit set for each free token
	low    int      // free[:low] has no bits
	pages  []uint32 // scratch of Put
}

type held struct {
	pool *Pool
	page uint32
}

// Issue takes a token for each of pages, and writes the tokens to dst. The pages must have references already; each
// token adds one. After Close, Issue returns false and takes none.
func (t *Tokens) Issue(p *Pool, pages []uint32, dst []uint32) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false
	}
	for j, page := range pages {
		for t.low < len(t.free) && t.free[t.low] == 0 {
			t.low++
		}
		if t.low == len(t.free) {
			t.free = append(t.free, ^uint64(0))
			t.held = append(t.held, make([]held, 64)...)
		}
		bit := bits.TrailingZeros64(t.free[t.low])
		t.free[t.low] &^= 1 << bit
		i := t.low*64 + bit
		t.held[i] = held{p, page}
		dst[j] = uint32(i + 1)
	}
	p.hold(pages)
	return true
}

// takeLocked frees a token and returns its page; false means that it was not issued.
func (t *Tokens) takeLocked(token uint32) (held, bool) {
	i := int(token) - 1
	if i < 0 || i >= len(t.held) || t.held[i].pool == nil {
		return held{}, false
	}
	h := t.held[i]
	t.held[i] = held{}
	t.free[i/64] |= 1 << (i % 64)
	t.low = min(t.low, i/64)
	return h, true
}

// Put frees the issued tokens among the first limit tokens in ranges, drops their references, and returns their
// number.
func (t *Tokens) Put(ranges []TokenRange, limit uint32) (freed int) {
	t.mu.Lock()
	var p *Pool
	pages := t.pages[:0]
	for _, r := range ranges {
		n := min(r.Count, limit)
		limit -= n
		for i := range n {
			h, ok := t.takeLocked(r.Start + i)
			if !ok {
				continue
			}
			if p != nil && h.pool != p {
				p.unhold(pages)
				pages = pages[:0]
			}
			p = h.pool
			pages = append(pages, h.page)
			freed++
		}
	}
	if p != nil {
		p.unhold(pages)
	}
	t.pages = pages
	t.mu.Unlock()
	return freed
}

// Held returns how many issued tokens are of pages of a pool.
func (t *Tokens) Held(p *Pool) (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.held {
		if t.held[i].pool == p {
			n++
		}
	}
	return n
}

// Close frees all tokens; Issue fails from then on.
func (t *Tokens) Close() {
	t.mu.Lock()
	t.closed = true
	n := uint32(len(t.held))
	t.mu.Unlock()
	t.Put([]TokenRange{{Start: 1, Count: n}}, n)
}

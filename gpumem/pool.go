package gpumem

// Pool is the pages of one receive binding.
type Pool struct{}

// NewPool returns a pool over [off, off+size) of a GPU, all pages free. It may be used by many goroutines.
func NewPool(off, size uint64) (*Pool, error) { return nil, errNotYet }

// Take takes free pages, lowest first, to be posted to the NIC, and returns how many it found. dst gets offsets in the GPU.
func (p *Pool) Take(dst []uint64) int { return 0 }

// Put returns posted pages that the NIC did not write (a stopped queue).
func (p *Pool) Put(offs []uint64) error { return errNotYet }

// Filled says that the NIC wrote to a posted page: the reference passes from the NIC to the stack.
func (p *Pool) Filled(off uint64) error { return errNotYet }

// Hold adds a reference of the stack to a filled page (off may be anywhere in it).
func (p *Pool) Hold(off uint64) error { return errNotYet }

// Drop takes a reference of the stack away; the page is free with the last one of any kind.
func (p *Pool) Drop(off uint64) error { return errNotYet }

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
func (p *Pool) Stats() PoolStats { return PoolStats{} }

// SetNotify sets what is called, without locks held, when a dry pool has a free page again.
func (p *Pool) SetNotify(f func()) {}

// TokenRange is Count tokens from Start (struct dmabuf_token).
type TokenRange struct{ Start, Count uint32 }

// Tokens is one socket's tokens. Each stands for a reference to a page of a Pool. Tokens belongs to one goroutine at a time.
type Tokens struct{}

// NewTokens returns no tokens. Strict numbers them as Linux does: the lowest free id from 1, used again at once.
// Otherwise an id carries a generation, so that returning it twice frees nothing else.
func NewTokens(strict bool) *Tokens { return &Tokens{} }

// Issue returns a token for the page that off is in, which must be filled.
func (t *Tokens) Issue(p *Pool, off uint64) (uint32, error) { return 0, errNotYet }

// DontNeed returns tokens, with the limits of SO_DEVMEM_DONTNEED, and says how many were freed.
func (t *Tokens) DontNeed(ranges []TokenRange) (freed int, err error) { return 0, errNotYet }

// Len returns how many tokens are out.
func (t *Tokens) Len() int { return 0 }

// Close returns all tokens and says how many these were.
func (t *Tokens) Close() int { return 0 }

package gpumem

import (
	"fmt"
	"slices"
	"sync"
	"syscall"
)

// Buffer is a registered range of a GPU's memory.
type Buffer struct {
	ID        uint32
	GPU       int
	Off, Size uint64
}

// Registry is the buffers that one port has registered in the GPUs that it may use. Its methods may
// be called from any goroutine.
type Registry struct {
	gpus  []*GPU
	limit int

	mu     sync.Mutex
	idle   sync.Cond  // of mu: signalled when a replaced table has no users any more
	now    *buffers   // under mu
	old    []*buffers // under mu: replaced, but still in use
	lastID uint32     // under mu
}

// buffers is a table of buffers, by id. It is never changed but replaced: an engine works on one
// piece with one table, and Unregister waits until no table with the buffer is in use.
type buffers struct {
	list  []Buffer
	users int // under the registry's mu
}

// covers reports whether [off, off+n) of a GPU lies in one registered buffer.
func (b *buffers) covers(gpu int, off, n uint64) bool {
	for i := range b.list {
		if f := &b.list[i]; f.GPU == gpu && off >= f.Off && off-f.Off <= f.Size && n <= f.Size-(off-f.Off) {
			return true
		}
	}
	return false
}

// NewRegistry returns an empty registry of at most limit buffers.
func NewRegistry(gpus []*GPU, limit int) *Registry {
	r := &Registry{gpus: slices.Clone(gpus), limit: limit, now: new(buffers)}
	r.idle.L = &r.mu
	return r
}

// GPU returns the GPU with this id, or nil if the port may not use it.
func (r *Registry) GPU(id int) *GPU {
	for _, g := range r.gpus {
		if g.ID() == id {
			return g
		}
	}
	return nil
}

// RegisterBuffer registers [off, off+size) of a GPU and returns the buffer's id, from 1; ids are
// not reused. Errors: ENODEV (no such GPU for this port), EINVAL (not whole pages of it), ENOSPC
// (too many).
func (r *Registry) RegisterBuffer(gpu int, off, size uint64) (uint32, error) {
	g := r.GPU(gpu)
	switch {
	case g == nil:
		return 0, fmt.Errorf("buffer: the port has no GPU %d: %w", gpu, syscall.ENODEV)
	case size == 0 || size%PageSize != 0 || off%PageSize != 0:
		return 0, fmt.Errorf("buffer [%#x, +%#x) of GPU %d: not whole pages of %d: %w", off, size, gpu, PageSize,
			syscall.EINVAL)
	case off > g.Size() || size > g.Size()-off:
		return 0, fmt.Errorf("buffer [%#x, +%#x) of GPU %d: beyond its %#x bytes: %w", off, size, gpu, g.Size(),
			syscall.EINVAL)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.now.list) >= r.limit {
		return 0, fmt.Errorf("buffer: %d are registered already: %w", r.limit, syscall.ENOSPC)
	}
	if err := g.File().Register(off, size); err != nil {
		return 0, fmt.Errorf("buffer [%#x, +%#x) of GPU %d: %w: %w", off, size, gpu, err, syscall.EINVAL)
	}
	r.lastID++
	r.replace(append(slices.Clone(r.now.list), Buffer{ID: r.lastID, GPU: gpu, Off: off, Size: size}))
	return r.lastID, nil
}

// Unregister undoes RegisterBuffer; it waits for engine pieces in progress. The error is ENOENT if
// there is no such buffer. The caller makes sure that no binding uses the buffer.
func (r *Registry) Unregister(id uint32) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.IndexFunc(r.now.list, func(b Buffer) bool { return b.ID == id })
	if i < 0 {
		return fmt.Errorf("no buffer %d: %w", id, syscall.ENOENT)
	}
	gone := r.now.list[i]
	r.replace(slices.Delete(slices.Clone(r.now.list), i, i+1))
	r.drain()
	return r.GPU(gone.GPU).File().Unregister(gone.Off, gone.Size)
}

// CloseAll unregisters all buffers: the port is reset or gone, and so are its bindings.
func (r *Registry) CloseAll() {
	r.mu.Lock()
	defer r.mu.Unlock()
	gone := r.now.list
	r.replace(nil)
	r.drain()
	for _, b := range gone {
		_ = r.GPU(b.GPU).File().Unregister(b.Off, b.Size) // the same range as registered
	}
}

// replace installs a new table; under mu.
func (r *Registry) replace(list []Buffer) {
	if r.now.users > 0 {
		r.old = append(r.old, r.now)
	}
	r.now = &buffers{list: list}
}

// drain waits until no replaced table is in use; under mu, which it releases meanwhile.
func (r *Registry) drain() {
	for waitFor := slices.Clone(r.old); slices.ContainsFunc(waitFor, func(b *buffers) bool { return b.users > 0 }); {
		r.idle.Wait()
	}
}

// enter returns the table for one piece of work; its buffers stay registered until leave.
func (r *Registry) enter() *buffers {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now.users++
	return r.now
}

func (r *Registry) leave(b *buffers) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if b.users--; b.users == 0 && b != r.now {
		r.old = slices.DeleteFunc(r.old, func(o *buffers) bool { return o == b })
		r.idle.Broadcast()
	}
}

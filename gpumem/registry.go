package gpumem

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"vnic.dev/vnic/internal/epoch"
)

// Buffer is a registered range of a GPU's memory.
type Buffer struct {
	ID        uint32
	GPU       int
	Off, Size uint64
}

// Registry has the buffers of one port (a guest's NIC) in GPUs. Several goroutines may call its methods.
type Registry struct {
	gpus  []*GPU
	limit int

	inside epoch.Epoch // jobs and digests that use a table
	now    atomic.Pointer[buffers]

	mu     sync.Mutex // held while the table is replaced
	lastID uint32     // under mu
}

// buffers is a table of buffers, sorted by id. A table never changes; Unregister and CloseAll wait
// until no table with a removed buffer is in use.
type buffers struct{ list []Buffer }

// covers reports whether [off, off+n) of a GPU lies in one buffer.
func (b *buffers) covers(gpu int, off, n uint64) bool {
	for i := range b.list {
		if f := &b.list[i]; f.GPU == gpu && off >= f.Off && off-f.Off <= f.Size && n <= f.Size-(off-f.Off) {
			return true
		}
	}
	return false
}

// NewRegistry returns a registry for at most limit buffers in these GPUs, without buffers.
func NewRegistry(gpus []*GPU, limit int) *Registry {
	r := &Registry{gpus: slices.Clone(gpus), limit: limit}
	r.inside.Init()
	r.now.Store(new(buffers))
	return r
}

// GPU returns the port's GPU with this id, or nil.
func (r *Registry) GPU(id int) *GPU {
	for _, g := range r.gpus {
		if g.ID() == id {
			return g
		}
	}
	return nil
}

// RegisterBuffer registers [off, off+size) of a GPU and returns an id, from 1, which is not reused. Errors:
// ENODEV (no such GPU), EINVAL (not whole pages of the GPU), ENOSPC (too many buffers).
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
	list := r.now.Load().list
	if len(list) >= r.limit {
		return 0, fmt.Errorf("buffer: %d are registered already: %w", r.limit, syscall.ENOSPC)
	}
	if err := g.File().Register(off, size); err != nil {
		return 0, fmt.Errorf("buffer [%#x, +%#x) of GPU %d: %w: %w", off, size, gpu, err, syscall.EINVAL)
	}
	r.lastID++
	r.now.Store(&buffers{append(slices.Clone(list), Buffer{ID: r.lastID, GPU: gpu, Off: off, Size: size})})
	return r.lastID, nil
}

// Unregister undoes RegisterBuffer, and waits for pieces of jobs and digests in progress. ENOENT: no such
// buffer. No binding may use it.
func (r *Registry) Unregister(id uint32) error {
	r.mu.Lock()
	list := r.now.Load().list
	i := slices.IndexFunc(list, func(b Buffer) bool { return b.ID == id })
	if i < 0 {
		r.mu.Unlock()
		return fmt.Errorf("no buffer %d: %w", id, syscall.ENOENT)
	}
	gone := list[i]
	r.now.Store(&buffers{slices.Delete(slices.Clone(list), i, i+1)})
	r.mu.Unlock()
	r.inside.Wait()
	return r.GPU(gone.GPU).File().Unregister(gone.Off, gone.Size)
}

// CloseAll unregisters all buffers, and waits as Unregister does. No binding may use them.
func (r *Registry) CloseAll() {
	r.mu.Lock()
	gone := r.now.Swap(new(buffers))
	r.mu.Unlock()
	r.inside.Wait()
	for _, b := range gone.list {
		_ = r.GPU(b.GPU).File().Unregister(b.Off, b.Size)
	}
}

// enter returns the current table, whose buffers stay registered until leave gets the token.
func (r *Registry) enter() (b *buffers, token int) {
	token = r.inside.Enter()
	return r.now.Load(), token
}

func (r *Registry) leave(token int) { r.inside.Leave(token) }

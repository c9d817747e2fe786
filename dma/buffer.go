package dma

import (
	"cmp"
	"fmt"
	"slices"
)

// extent is the range [off, end) of a file.
type extent struct{ off, end uint64 }

func (a extent) compare(b extent) int {
	return cmp.Or(cmp.Compare(a.off, b.off), cmp.Compare(a.end, b.end))
}

// SetGPU declares that the file is memory of the GPU with this id, 0 to MaxGPUs-1, or of none (-1); it panics for
// other ids. Call it right after Open.
func (f *File) SetGPU(id int) {
	if id < -1 || id >= MaxGPUs {
		panic(fmt.Sprintf("dma: SetGPU(%d): ids end at %d", id, MaxGPUs-1))
	}
	f.gpu.Store(int32(id))
}

// GPU returns the id of the file's GPU, or -1.
func (f *File) GPU() int { return int(f.gpu.Load()) }

// Register makes [off, off+n) a registered GPU buffer: a byte is of kind GPU while it is in a registered buffer.
// Ranges may overlap; each Register needs its own Unregister. ErrBadFile: the file is no GPU's; ErrBounds: n is 0 or
// the range is not in the file.
func (f *File) Register(off, n uint64) error {
	if f.GPU() < 0 {
		return fmt.Errorf("%w: register [%#x, +%#x): file %v is no GPU's", ErrBadFile, off, n, f)
	}
	if n == 0 || off > f.Size() || n > f.Size()-off {
		return fmt.Errorf("%w: register [%#x, +%#x): GPU %d has %#x bytes", ErrBounds, off, n, f.GPU(), f.Size())
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	e := extent{off, off + n}
	i, _ := slices.BinarySearchFunc(f.registered, e, extent.compare)
	f.registered = slices.Insert(f.registered, i, e)
	f.publish()
	return nil
}

// Unregister undoes one Register of the same range; ErrBounds if there is none.
func (f *File) Unregister(off, n uint64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	i, ok := slices.BinarySearchFunc(f.registered, extent{off, off + n}, extent.compare)
	if !ok || n == 0 {
		return fmt.Errorf("%w: unregister [%#x, +%#x): no such buffer in file %v", ErrBounds, off, n, f)
	}
	f.registered = slices.Delete(f.registered, i, i+1)
	f.publish()
	return nil
}

// publish stores the union of the registered ranges in f.bufs. The caller holds f.mu.
func (f *File) publish() {
	if len(f.registered) == 0 {
		f.bufs.Store(nil)
		return
	}
	union := make([]extent, 0, len(f.registered))
	for _, e := range f.registered {
		if last := len(union) - 1; last >= 0 && e.off <= union[last].end {
			union[last].end = max(union[last].end, e.end)
		} else {
			union = append(union, e)
		}
	}
	f.bufs.Store(&union)
}

// MemKind returns the kind of memory at off, and how many bytes from there on have it. At the file's end or beyond,
// n is 0.
func (f *File) MemKind(off uint64) (d MemKind, n uint64) {
	if off >= f.Size() {
		return Host, 0
	}
	rest := f.Size() - off
	if f.gpu.Load() < 0 {
		return Host, rest
	}
	p := f.bufs.Load()
	if p == nil {
		return GPUFile, rest
	}
	bufs := *p
	lo, hi := 0, len(bufs) // the loop makes lo the index of the first extent that ends past off
	for lo < hi {
		if mid := int(uint(lo+hi) >> 1); bufs[mid].end <= off {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	switch {
	case lo == len(bufs):
		return GPUFile, rest
	case off < bufs[lo].off:
		return GPUFile, bufs[lo].off - off
	}
	return GPU, bufs[lo].end - off
}

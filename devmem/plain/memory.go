package plain

import (
	"context"
	"fmt"
	"sync/atomic"
	"syscall"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/devmembase"
	"vnic.dev/vnic/internal/elements"
)

// Memory is a devmem.Memory in which the CPU does the work. Operations check their contexts at least once per MiB.
type Memory struct{ devmem.Memory }

var _ devmem.Memory = (*Memory)(nil)

type worker struct {
	bytes func(gpu int, off, size uint64) ([]byte, error)
}

// NewMemory returns a Memory of gpus: GPU 0 is the first argument.
func NewMemory(gpus ...*GPU) *Memory {
	return MapMemory(func(gpu int, off, size uint64) ([]byte, error) {
		if gpu < 0 || gpu >= len(gpus) {
			return nil, fmt.Errorf("gpu %d: %w", gpu, syscall.ENODEV)
		}
		all := gpus[gpu].Bytes()
		if n := uint64(len(all)); off > n || size > n-off {
			return nil, fmt.Errorf("[%#x, +%#x) of gpu %d: %w", off, size, gpu, syscall.EFAULT)
		}
		return all[off : off+size : off+size], nil
	})
}

// MapMemory returns a Memory over memory that the CPU can access, such as a mapped dma-buf. The function bytes
// returns size bytes of the memory of GPU number gpu from offset off on. If these are not contiguous for the CPU, it
// returns fewer, at least one, and ends them at the end of a page. Several goroutines may call bytes at once. Memory
// uses the result until the method that called bytes returns.
func MapMemory(bytes func(gpu int, off, size uint64) ([]byte, error)) *Memory {
	return &Memory{devmembase.NewMemory(worker{bytes})}
}

// step is the most bytes between two checks of the context.
const step = 1 << 20

// memory is a function that returns 1 to n bytes from offset pos on, or an error; n is at least 1.
type memory func(pos, n uint64) ([]byte, error)

func (w worker) memoryOf(b devmem.Buffer, off uint64) memory {
	return func(pos, n uint64) ([]byte, error) {
		pos += b.Offset() + off
		part, err := w.bytes(b.GPU(), pos, n)
		if err == nil && len(part) == 0 {
			err = fmt.Errorf("%#x of gpu %d: no memory is there: %w", pos, b.GPU(), syscall.EFAULT)
		}
		return part, err
	}
}

func host(b []byte) memory { return func(pos, n uint64) ([]byte, error) { return b[pos:][:n], nil } }

// pairs calls f for the first n bytes of dst and src, in pieces of equal length of both, and adds the lengths to
// count. It returns the first error, or ctx's cause if ctx has ended.
func pairs(ctx context.Context, dst, src memory, n uint64, count *atomic.Uint64, f func(dst, src []byte)) error {
	for pos := uint64(0); pos < n; {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		to, err := dst(pos, n-pos)
		if err != nil {
			return err
		}
		from, err := src(pos, n-pos)
		if err != nil {
			return err
		}
		k := min(len(to), len(from), step)
		f(to[:k], from[:k])
		count.Add(uint64(k))
		pos += uint64(k)
	}
	return nil
}

func move(dst, src []byte) { copy(dst, src) }

// ToHost implements devmembase.Worker.
func (w worker) ToHost(ctx context.Context, dst []byte, b devmem.Buffer, from devmembase.Pieces,
	count *atomic.Uint64) error {
	for i := range from.Len() {
		r := from.At(i)
		if err := pairs(ctx, host(dst), w.memoryOf(b, r.Off), r.Len, count, move); err != nil {
			return err
		}
		dst = dst[r.Len:]
	}
	return nil
}

// FromHost implements devmembase.Worker.
func (w worker) FromHost(ctx context.Context, b devmem.Buffer, off uint64, src []byte, count *atomic.Uint64) error {
	return pairs(ctx, w.memoryOf(b, off), host(src), uint64(len(src)), count, move)
}

// Within implements devmembase.Worker.
func (w worker) Within(ctx context.Context, t devmem.Type, dst, src devmem.Buffer, moves []devmem.Move,
	count *atomic.Uint64) error {
	f := move
	if t != 0 {
		f = func(dst, src []byte) { elements.Add(elements.Type(t), dst, src) }
	}
	for i, v := range moves {
		if err := pairs(ctx, w.memoryOf(dst, v.Dst), w.memoryOf(src, v.Src), v.Len, count, f); err != nil {
			return fmt.Errorf("move %d: %w", i, err)
		}
	}
	return nil
}

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

// Memory is a devmem.Memory in which the CPU does the work, on memory that it can access. An
// operation costs a pass over the moved bytes, and checks its context once per MiB.
type Memory struct{ devmem.Memory }

var _ devmem.Memory = (*Memory)(nil)

// worker does the work of a Memory.
type worker struct {
	bytes func(gpu int, off, size uint64) ([]byte, error)
}

// NewMemory returns a Memory of GPUs, which are numbered in this order, as in a Device.
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

// MapMemory returns a Memory over memory that the CPU can access, such as a mapped dma-buf. bytes
// returns size bytes of a GPU's memory from off on, or fewer if fewer are contiguous: then whole
// pages, except at the end. It is called from several goroutines; its result is used until the
// method of Memory that called it returns.
func MapMemory(bytes func(gpu int, off, size uint64) ([]byte, error)) *Memory {
	return &Memory{devmembase.NewMemory(worker{bytes})}
}

// step is how many bytes are processed between two checks of the context: whole elements of any
// type.
const step = 1 << 20

// part is a range of a buffer, or host memory, that a worker processes piece by piece.
type part struct {
	w         worker
	gpu       int
	pos, left uint64
	now       []byte // the next bytes, which are contiguous
}

// open returns [off, off+n) of a buffer as a part.
func (w worker) open(b devmem.Buffer, off, n uint64) (part, error) {
	pos, err := devmembase.Inside(b, off, n)
	return part{w: w, gpu: b.GPU(), pos: pos, left: n}, err
}

// look returns the next contiguous bytes; none if the whole part was skipped.
func (p *part) look() ([]byte, error) {
	if len(p.now) > 0 || p.left == 0 {
		return p.now, nil
	}
	b, err := p.w.bytes(p.gpu, p.pos, p.left)
	if err == nil && len(b) == 0 {
		err = fmt.Errorf("%#x of gpu %d: no memory is there: %w", p.pos, p.gpu, syscall.EFAULT)
	}
	p.now = b
	return b, err
}

// skip skips n of the next bytes.
func (p *part) skip(n int) {
	p.now, p.pos, p.left = p.now[n:], p.pos+uint64(n), p.left-uint64(n)
}

// pairs calls f with pieces of equal length of both parts, until dst ends, and counts the bytes.
func pairs(ctx context.Context, dst, src *part, count *atomic.Uint64, f func(dst, src []byte)) error {
	for dst.left > 0 {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		to, err := dst.look()
		if err != nil {
			return err
		}
		from, err := src.look()
		if err != nil {
			return err
		}
		n := min(len(to), len(from), step)
		f(to[:n], from[:n])
		count.Add(uint64(n))
		dst.skip(n)
		src.skip(n)
	}
	return nil
}

// host returns host memory as a part.
func host(b []byte) part { return part{now: b, left: uint64(len(b))} }

func move(dst, src []byte) { copy(dst, src) }

// ToHost implements devmembase.Worker.
func (w worker) ToHost(ctx context.Context, dst []byte, b devmem.Buffer, from devmembase.Pieces,
	count *atomic.Uint64) error {
	for i := range from.Len() {
		r := from.At(i)
		src, err := w.open(b, r.Off, r.Len)
		if err != nil {
			return err
		}
		to := host(dst[:r.Len])
		if err := pairs(ctx, &to, &src, count, move); err != nil {
			return err
		}
		dst = dst[r.Len:]
	}
	return nil
}

// FromHost implements devmembase.Worker.
func (w worker) FromHost(ctx context.Context, b devmem.Buffer, off uint64, src []byte, count *atomic.Uint64) error {
	dst, err := w.open(b, off, uint64(len(src)))
	if err != nil {
		return err
	}
	from := host(src)
	return pairs(ctx, &dst, &from, count, move)
}

// Within implements devmembase.Worker.
func (w worker) Within(ctx context.Context, t devmem.Type, dst, src devmem.Buffer, moves []devmem.Move,
	count *atomic.Uint64) error {
	f := move
	if t != 0 {
		f = func(dst, src []byte) { elements.Add(elements.Type(t), dst, src) }
	}
	for i, v := range moves {
		to, err := w.open(dst, v.Dst, v.Len)
		if err != nil {
			return fmt.Errorf("move %d: %w", i, err)
		}
		from, err := w.open(src, v.Src, v.Len)
		if err != nil {
			return fmt.Errorf("move %d: %w", i, err)
		}
		if err := pairs(ctx, &to, &from, count, f); err != nil {
			return fmt.Errorf("move %d: %w", i, err)
		}
	}
	return nil
}

package plain

import (
	"context"
	"fmt"
	"sync/atomic"
	"syscall"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/elements"
)

// Memory is a devmem.Memory in which the CPU does the work, on memory that it can access. An
// operation costs a pass over the moved bytes, and checks its context once per MiB.
type Memory struct {
	bytes func(gpu int, off, size uint64) ([]byte, error)

	looked, put, got, gathered, reduced atomic.Uint64
}

var _ devmem.Memory = (*Memory)(nil)

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
	return &Memory{bytes: bytes}
}

// step is how many bytes are processed between two checks of the context: whole elements of any
// type.
const step = 1 << 20

// part is a part of a buffer, from which pieces are taken one after another.
type part struct {
	m         *Memory
	gpu       int
	pos, left uint64
	now       []byte // the next bytes of it
}

// open returns [off, off+n) of a buffer as a part.
func (m *Memory) open(b devmem.Buffer, off, n uint64) (part, error) {
	if size := b.Size(); off > size || n > size-off {
		return part{}, fmt.Errorf("[%#x, +%#x) of a buffer of %#x bytes: %w", off, n, size, syscall.EFAULT)
	}
	return part{m: m, gpu: b.GPU(), pos: b.Offset() + off, left: n}, nil
}

// look returns the next bytes.
func (p *part) look() ([]byte, error) {
	if len(p.now) > 0 || p.left == 0 {
		return p.now, nil
	}
	b, err := p.m.bytes(p.gpu, p.pos, p.left)
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

// Look implements devmem.Memory.
func (m *Memory) Look(ctx context.Context, dst []byte, b devmem.Buffer, ranges ...devmem.Range) error {
	if err := devmem.CheckRanges(len(dst), ranges); err != nil {
		return fmt.Errorf("look: %w", err)
	}
	for _, r := range ranges {
		if err := m.get(ctx, dst[:r.Len], b, r.Off, &m.looked); err != nil {
			return fmt.Errorf("look: %w", err)
		}
		dst = dst[r.Len:]
	}
	return nil
}

// LookEach implements devmem.Memory.
func (m *Memory) LookEach(ctx context.Context, dst []byte, b devmem.Buffer, s devmem.Strided) error {
	if err := s.Check(len(dst)); err != nil {
		return fmt.Errorf("look: %w", err)
	}
	for i := range s.Count {
		if err := m.get(ctx, dst[i*s.Len:(i+1)*s.Len], b, s.Off+uint64(i)*s.Stride, &m.looked); err != nil {
			return fmt.Errorf("look at piece %d: %w", i, err)
		}
	}
	return nil
}

// Get implements devmem.Memory.
func (m *Memory) Get(ctx context.Context, dst []byte, b devmem.Buffer, off uint64) error {
	if err := m.get(ctx, dst, b, off, &m.got); err != nil {
		return fmt.Errorf("get: %w", err)
	}
	return nil
}

func (m *Memory) get(ctx context.Context, dst []byte, b devmem.Buffer, off uint64, count *atomic.Uint64) error {
	src, err := m.open(b, off, uint64(len(dst)))
	if err != nil {
		return err
	}
	to := host(dst)
	return pairs(ctx, &to, &src, count, move)
}

// Put implements devmem.Memory.
func (m *Memory) Put(ctx context.Context, b devmem.Buffer, off uint64, src []byte) error {
	dst, err := m.open(b, off, uint64(len(src)))
	if err == nil {
		from := host(src)
		err = pairs(ctx, &dst, &from, &m.put, move)
	}
	if err != nil {
		return fmt.Errorf("put: %w", err)
	}
	return nil
}

// Gather implements devmem.Memory.
func (m *Memory) Gather(ctx context.Context, dst, src devmem.Buffer, moves []devmem.Move) error {
	if err := together(dst, src); err != nil {
		return fmt.Errorf("gather: %w", err)
	}
	for i, v := range moves {
		if err := m.both(ctx, dst, v.Dst, src, v.Src, v.Len, &m.gathered, move); err != nil {
			return fmt.Errorf("gather, move %d: %w", i, err)
		}
	}
	return nil
}

// Reduce implements devmem.Memory.
func (m *Memory) Reduce(ctx context.Context, t devmem.Type, dst devmem.Buffer, dstOff uint64, src devmem.Buffer,
	srcOff uint64, n uint64) error {
	err := together(dst, src)
	if err == nil {
		err = t.Check(dstOff, srcOff, n)
	}
	if err != nil {
		return fmt.Errorf("reduce: %w", err)
	}
	err = m.both(ctx, dst, dstOff, src, srcOff, n*t.Size(), &m.reduced, func(dst, src []byte) {
		elements.Add(elements.Type(t), dst, src)
	})
	if err != nil {
		return fmt.Errorf("reduce: %w", err)
	}
	return nil
}

// both calls f with pieces of n bytes of two buffers.
func (m *Memory) both(ctx context.Context, dst devmem.Buffer, dstOff uint64, src devmem.Buffer, srcOff, n uint64,
	count *atomic.Uint64, f func(dst, src []byte)) error {
	to, err := m.open(dst, dstOff, n)
	if err != nil {
		return err
	}
	from, err := m.open(src, srcOff, n)
	if err != nil {
		return err
	}
	return pairs(ctx, &to, &from, count, f)
}

// together returns an error if two buffers are not on one GPU.
func together(dst, src devmem.Buffer) error {
	if dst.GPU() != src.GPU() {
		return fmt.Errorf("of gpu %d and of gpu %d: %w", dst.GPU(), src.GPU(), syscall.EXDEV)
	}
	return nil
}

// Stats implements devmem.Memory.
func (m *Memory) Stats() devmem.MemoryStats {
	return devmem.MemoryStats{Looked: m.looked.Load(), Put: m.put.Load(), Got: m.got.Load(),
		Gathered: m.gathered.Load(), Reduced: m.reduced.Load()}
}

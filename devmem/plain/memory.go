package plain

import (
	"context"
	"fmt"
	"sync/atomic"
	"syscall"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/elements"
)

// Memory is a devmem.Memory whose work the CPU does: on memory that it sees. It costs a pass over what is moved, and
// looks at its context once a MiB.
type Memory struct {
	bytes func(gpu int, off, size uint64) ([]byte, error)

	looked, put, got, gathered, reduced atomic.Uint64
}

var _ devmem.Memory = (*Memory)(nil)

// MapMemory makes a Memory of what a function finds: size bytes of a GPU's memory from off on, as the CPU sees them,
// such as of a dma-buf that is mapped. It is asked for each piece, from many goroutines; the bytes are used until the
// next call at most.
func MapMemory(bytes func(gpu int, off, size uint64) ([]byte, error)) *Memory {
	return &Memory{bytes: bytes}
}

// step is how much is done without a look at the context.
const step = 1 << 20

// open gives [off, off+n) of a buffer.
func (m *Memory) open(b devmem.Buffer, off, n uint64) ([]byte, error) {
	if size := b.Size(); off > size || n > size-off {
		return nil, fmt.Errorf("[%#x, +%#x) of a buffer of %#x bytes: %w", off, n, size, syscall.EFAULT)
	}
	return m.bytes(b.GPU(), b.Offset()+off, n)
}

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
	return m.copy(ctx, dst, src, count)
}

// Put implements devmem.Memory.
func (m *Memory) Put(ctx context.Context, b devmem.Buffer, off uint64, src []byte) error {
	dst, err := m.open(b, off, uint64(len(src)))
	if err == nil {
		err = m.copy(ctx, dst, src, &m.put)
	}
	if err != nil {
		return fmt.Errorf("put: %w", err)
	}
	return nil
}

// copy copies src to dst, of the same length.
func (m *Memory) copy(ctx context.Context, dst, src []byte, count *atomic.Uint64) error {
	for len(src) > 0 {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		n := copy(dst, src[:min(len(src), step)])
		count.Add(uint64(n))
		dst, src = dst[n:], src[n:]
	}
	return nil
}

// Gather implements devmem.Memory.
func (m *Memory) Gather(ctx context.Context, dst, src devmem.Buffer, moves []devmem.Move) error {
	if err := together(dst, src); err != nil {
		return fmt.Errorf("gather: %w", err)
	}
	for i, v := range moves {
		to, err := m.open(dst, v.Dst, v.Len)
		if err == nil {
			var from []byte
			if from, err = m.open(src, v.Src, v.Len); err == nil {
				err = m.copy(ctx, to, from, &m.gathered)
			}
		}
		if err != nil {
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
	n *= t.Size()
	to, err := m.open(dst, dstOff, n)
	if err != nil {
		return fmt.Errorf("reduce: %w", err)
	}
	from, err := m.open(src, srcOff, n)
	if err != nil {
		return fmt.Errorf("reduce: %w", err)
	}
	for len(to) > 0 {
		if ctx.Err() != nil {
			return fmt.Errorf("reduce: %w", context.Cause(ctx))
		}
		k := min(len(to), step)
		elements.Add(elements.Type(t), to[:k], from[:k])
		m.reduced.Add(uint64(k))
		to, from = to[k:], from[k:]
	}
	return nil
}

// together says what is wrong with two buffers for work on both.
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

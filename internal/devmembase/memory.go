package devmembase

import (
	"cmp"
	"context"
	"fmt"
	"sync/atomic"
	"syscall"

	"vnic.dev/vnic/devmem"
)

// Worker works on a GPU's memory. Memory has checked that pieces and moves are inside their buffers. The methods
// add the number of processed bytes to count, also of bytes processed before an error.
type Worker interface {
	// ToHost copies pieces of a buffer to dst, which is as long as all of them together.
	ToHost(ctx context.Context, dst []byte, b devmem.Buffer, from Pieces, count *atomic.Uint64) error
	FromHost(ctx context.Context, b devmem.Buffer, off uint64, src []byte, count *atomic.Uint64) error
	// Within makes moves within the memory of one GPU: if t is 0 it copies, else it adds elements of type t.
	Within(ctx context.Context, t devmem.Type, dst, src devmem.Buffer, moves []devmem.Move, count *atomic.Uint64) error
}

// Memory is a devmem.Memory whose work a Worker does.
type Memory struct {
	w Worker

	looked, put, got, gathered, reduced atomic.Uint64
}

var _ devmem.Memory = (*Memory)(nil)

// NewMemory makes a Memory.
func NewMemory(w Worker) *Memory { return &Memory{w: w} }

// Pieces are pieces of a buffer: the field ranges, or, if it is nil, the pieces that the field each describes.
type Pieces struct {
	ranges []devmem.Range
	each   devmem.Strided
}

// Len returns the number of pieces.
func (p *Pieces) Len() int { return len(p.ranges) + p.each.Count }

// At returns piece i.
func (p *Pieces) At(i int) devmem.Range {
	if p.ranges != nil {
		return p.ranges[i]
	}
	return devmem.Range{Off: p.each.Off + uint64(i)*p.each.Stride, Len: uint64(p.each.Len)}
}

func inside(b devmem.Buffer, off, n uint64) error {
	if size := b.Size(); off > size || n > size-off {
		return fmt.Errorf("[%#x, +%#x) of a buffer of %#x bytes: %w", off, n, size, syscall.EFAULT)
	}
	return nil
}

// Named adds an operation's name to its error. It returns nil for nil.
func Named(name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", name, err)
}

func (m *Memory) toHost(ctx context.Context, dst []byte, b devmem.Buffer, from Pieces, count *atomic.Uint64) error {
	for i := range from.Len() {
		r := from.At(i)
		if err := inside(b, r.Off, r.Len); err != nil {
			return err
		}
	}
	return m.w.ToHost(ctx, dst, b, from, count)
}

// Look implements devmem.Memory.
func (m *Memory) Look(ctx context.Context, dst []byte, b devmem.Buffer, ranges ...devmem.Range) error {
	err := devmem.CheckRanges(len(dst), ranges)
	if err == nil {
		err = m.toHost(ctx, dst, b, Pieces{ranges: ranges}, &m.looked)
	}
	return Named("look", err)
}

// LookEach implements devmem.Memory.
func (m *Memory) LookEach(ctx context.Context, dst []byte, b devmem.Buffer, s devmem.Strided) error {
	err := s.Check(len(dst))
	if err == nil {
		err = m.toHost(ctx, dst, b, Pieces{each: s}, &m.looked)
	}
	return Named("look", err)
}

// Get implements devmem.Memory.
func (m *Memory) Get(ctx context.Context, dst []byte, b devmem.Buffer, off uint64) error {
	return Named("get", m.toHost(ctx, dst, b, Pieces{each: devmem.Strided{Off: off, Len: len(dst), Count: 1}}, &m.got))
}

// Put implements devmem.Memory.
func (m *Memory) Put(ctx context.Context, b devmem.Buffer, off uint64, src []byte) error {
	err := inside(b, off, uint64(len(src)))
	if err == nil {
		err = m.w.FromHost(ctx, b, off, src, &m.put)
	}
	return Named("put", err)
}

// Gather implements devmem.Memory.
func (m *Memory) Gather(ctx context.Context, dst, src devmem.Buffer, moves []devmem.Move) error {
	return Named("gather", m.within(ctx, 0, dst, src, moves, &m.gathered))
}

// Reduce implements devmem.Memory.
func (m *Memory) Reduce(ctx context.Context, t devmem.Type, dst devmem.Buffer, dstOff uint64, src devmem.Buffer,
	srcOff uint64, n uint64) error {
	err := t.Check(dstOff, srcOff, n)
	if err == nil {
		err = m.within(ctx, t, dst, src, []devmem.Move{{Src: srcOff, Dst: dstOff, Len: n * t.Size()}}, &m.reduced)
	}
	return Named("reduce", err)
}

func (m *Memory) within(ctx context.Context, t devmem.Type, dst, src devmem.Buffer, moves []devmem.Move,
	count *atomic.Uint64) error {
	if dst.GPU() != src.GPU() {
		return fmt.Errorf("of gpu %d and of gpu %d: %w", dst.GPU(), src.GPU(), syscall.EXDEV)
	}
	for i, v := range moves {
		if err := cmp.Or(inside(dst, v.Dst, v.Len), inside(src, v.Src, v.Len)); err != nil {
			return fmt.Errorf("move %d: %w", i, err)
		}
	}
	return m.w.Within(ctx, t, dst, src, moves, count)
}

// Stats implements devmem.Memory.
func (m *Memory) Stats() devmem.MemoryStats {
	return devmem.MemoryStats{Looked: m.looked.Load(), Put: m.put.Load(), Got: m.got.Load(),
		Gathered: m.gathered.Load(), Reduced: m.reduced.Load()}
}

// Package engine is a devmem.Memory that uses the engines of vnic's GPUs, by jobs that a guest's
// driver submits (docs/specs/control.md): no CPU of the guest accesses payload. Look, Put and Get
// go through guest memory that the NIC reaches.
//
// Cost: four jobs at a time, each with a table of 1024 entries and 256 KiB of staging memory,
// allocated at the first use; a fifth call waits. A call makes a job for every 1024 pieces, and for
// every 256 KiB that it looks at, puts or gets.
//
// The package is not API (README, Stability).
package engine

import (
	"context"
	"fmt"
	"sync/atomic"
	"syscall"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/control"
)

// Runner runs jobs on the guest's GPUs: *control.Client, or *kernelnic.Engine. When RunJob returns,
// the job no longer accesses memory.
type Runner interface {
	RunJob(ctx context.Context, j control.Job) (control.JobStatus, error)
}

// DMA allocates guest memory that the NIC reaches: *driver.NIC, or *hugemem.Memory. It is never
// freed.
type DMA interface {
	AllocDMA(size int) (b []byte, iova uint64, err error)
}

const (
	jobs       = 4
	maxEntries = 1024
	staging    = 256 << 10
	maxEntry   = 1 << 30 // bytes of an entry, whose length field has 32 bits; a multiple of every type's size
)

// Memory implements devmem.Memory.
type Memory struct {
	run   Runner
	dma   DMA
	slots chan *slot // free slots

	looked, put, got, gathered, reduced atomic.Uint64
}

var _ devmem.Memory = (*Memory)(nil)

// New makes a Memory of a guest's GPUs.
func New(run Runner, dma DMA) *Memory {
	m := &Memory{run: run, dma: dma, slots: make(chan *slot, jobs)}
	for range jobs {
		m.slots <- &slot{}
	}
	return m
}

// slot is the memory of a job.
type slot struct {
	table, data         []byte
	tableIOVA, dataIOVA uint64
	n                   int // entries in the table
	used                int // bytes of data in use
}

// take waits for an unused slot.
func (m *Memory) take(ctx context.Context) (*slot, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	select {
	case s := <-m.slots:
		s.n, s.used = 0, 0
		err := error(nil)
		if s.table == nil {
			if s.table, s.tableIOVA, err = m.dma.AllocDMA(maxEntries * control.JobEntryLen); err != nil {
				s.table = nil
			}
		}
		if err == nil && s.data == nil {
			if s.data, s.dataIOVA, err = m.dma.AllocDMA(staging); err != nil {
				s.data = nil
			}
		}
		if err != nil {
			m.slots <- s
			return nil, fmt.Errorf("memory for jobs: %w", err)
		}
		return s, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// add adds an entry to the table.
func (s *slot) add(src, dst uint64, n int) {
	e := control.JobEntry{Src: src, Dst: dst, Len: uint32(n)}
	e.Encode((*[control.JobEntryLen]byte)(s.table[s.n*control.JobEntryLen:]))
	s.n++
}

// do runs the job of a table, and empties the table.
func (m *Memory) do(ctx context.Context, s *slot, op control.JobOp, gpu int, t devmem.Type, count *atomic.Uint64) error {
	if s.n == 0 {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	done, err := m.run.RunJob(ctx, control.Job{Op: op, GPU: uint16(gpu), Entries: uint32(s.n), Table: s.tableIOVA,
		Seed: uint64(t)})
	count.Add(done.Bytes)
	s.n, s.used = 0, 0
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return err
}

// inside returns the offset in the GPU's memory of [off, off+n) of a buffer, or EFAULT.
func inside(b devmem.Buffer, off, n uint64) (gpuOff uint64, err error) {
	if size := b.Size(); off > size || n > size-off {
		return 0, fmt.Errorf("[%#x, +%#x) of a buffer of %#x bytes: %w", off, n, size, syscall.EFAULT)
	}
	return b.Offset() + off, nil
}

// Look implements devmem.Memory.
func (m *Memory) Look(ctx context.Context, dst []byte, b devmem.Buffer, ranges ...devmem.Range) error {
	if err := devmem.CheckRanges(len(dst), ranges); err != nil {
		return fmt.Errorf("look: %w", err)
	}
	err := m.toHost(ctx, dst, b, &m.looked, func(yield func(devmem.Range) bool) {
		for _, r := range ranges {
			if !yield(r) {
				return
			}
		}
	})
	if err != nil {
		return fmt.Errorf("look: %w", err)
	}
	return nil
}

// LookEach implements devmem.Memory.
func (m *Memory) LookEach(ctx context.Context, dst []byte, b devmem.Buffer, p devmem.Strided) error {
	if err := p.Check(len(dst)); err != nil {
		return fmt.Errorf("look: %w", err)
	}
	err := m.toHost(ctx, dst, b, &m.looked, func(yield func(devmem.Range) bool) {
		for i := range p.Count {
			if !yield(devmem.Range{Off: p.Off + uint64(i)*p.Stride, Len: uint64(p.Len)}) {
				return
			}
		}
	})
	if err != nil {
		return fmt.Errorf("look: %w", err)
	}
	return nil
}

// Get implements devmem.Memory.
func (m *Memory) Get(ctx context.Context, dst []byte, b devmem.Buffer, off uint64) error {
	err := m.toHost(ctx, dst, b, &m.got, func(yield func(devmem.Range) bool) {
		yield(devmem.Range{Off: off, Len: uint64(len(dst))})
	})
	if err != nil {
		return fmt.Errorf("get: %w", err)
	}
	return nil
}

// toHost copies ranges to dst, which has their length.
func (m *Memory) toHost(ctx context.Context, dst []byte, b devmem.Buffer, count *atomic.Uint64,
	ranges func(yield func(devmem.Range) bool)) error {
	s, err := m.take(ctx)
	if err != nil {
		return err
	}
	defer func() { m.slots <- s }()
	flush := func() error {
		n := s.used
		if err := m.do(ctx, s, control.JobToGuest, b.GPU(), 0, count); err != nil {
			return err
		}
		dst = dst[copy(dst, s.data[:n]):]
		return nil
	}
	for r := range ranges {
		gpuOff, err := inside(b, r.Off, r.Len)
		if err != nil {
			return err
		}
		for r.Len > 0 {
			if s.n == maxEntries || s.used == staging {
				if err := flush(); err != nil {
					return err
				}
			}
			n := int(min(r.Len, uint64(staging-s.used)))
			s.add(gpuOff, s.dataIOVA+uint64(s.used), n)
			s.used, gpuOff, r.Len = s.used+n, gpuOff+uint64(n), r.Len-uint64(n)
		}
	}
	return flush()
}

// Put implements devmem.Memory.
func (m *Memory) Put(ctx context.Context, b devmem.Buffer, off uint64, src []byte) error {
	gpuOff, err := inside(b, off, uint64(len(src)))
	if err != nil {
		return fmt.Errorf("put: %w", err)
	}
	s, err := m.take(ctx)
	if err != nil {
		return fmt.Errorf("put: %w", err)
	}
	defer func() { m.slots <- s }()
	for len(src) > 0 {
		n := copy(s.data, src)
		s.add(s.dataIOVA, gpuOff, n)
		if err := m.do(ctx, s, control.JobFromGuest, b.GPU(), 0, &m.put); err != nil {
			return fmt.Errorf("put: %w", err)
		}
		src, gpuOff = src[n:], gpuOff+uint64(n)
	}
	return nil
}

// Gather implements devmem.Memory.
func (m *Memory) Gather(ctx context.Context, dst, src devmem.Buffer, moves []devmem.Move) error {
	if err := m.within(ctx, control.JobGather, 0, dst, src, moves, &m.gathered); err != nil {
		return fmt.Errorf("gather: %w", err)
	}
	return nil
}

// Reduce implements devmem.Memory.
func (m *Memory) Reduce(ctx context.Context, t devmem.Type, dst devmem.Buffer, dstOff uint64, src devmem.Buffer,
	srcOff uint64, n uint64) error {
	err := t.Check(dstOff, srcOff, n)
	if err == nil {
		err = m.within(ctx, control.JobReduce, t, dst, src, []devmem.Move{{Src: srcOff, Dst: dstOff, Len: n * t.Size()}},
			&m.reduced)
	}
	if err != nil {
		return fmt.Errorf("reduce: %w", err)
	}
	return nil
}

// within runs jobs that move or add within a GPU's memory.
func (m *Memory) within(ctx context.Context, op control.JobOp, t devmem.Type, dst, src devmem.Buffer,
	moves []devmem.Move, count *atomic.Uint64) error {
	if dst.GPU() != src.GPU() {
		return fmt.Errorf("of gpu %d and of gpu %d: %w", dst.GPU(), src.GPU(), syscall.EXDEV)
	}
	s, err := m.take(ctx)
	if err != nil {
		return err
	}
	defer func() { m.slots <- s }()
	for i, v := range moves {
		to, err := inside(dst, v.Dst, v.Len)
		if err != nil {
			return fmt.Errorf("move %d: %w", i, err)
		}
		from, err := inside(src, v.Src, v.Len)
		if err != nil {
			return fmt.Errorf("move %d: %w", i, err)
		}
		for v.Len > 0 {
			if s.n == maxEntries {
				if err := m.do(ctx, s, op, dst.GPU(), t, count); err != nil {
					return err
				}
			}
			n := min(v.Len, maxEntry)
			s.add(from, to, int(n))
			from, to, v.Len = from+n, to+n, v.Len-n
		}
	}
	return m.do(ctx, s, op, dst.GPU(), t, count)
}

// Stats implements devmem.Memory.
func (m *Memory) Stats() devmem.MemoryStats {
	return devmem.MemoryStats{Looked: m.looked.Load(), Put: m.put.Load(), Got: m.got.Load(),
		Gathered: m.gathered.Load(), Reduced: m.reduced.Load()}
}

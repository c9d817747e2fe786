// Package engine implements devmem.Memory by the engines of vnic's GPUs, to which a guest's driver submits jobs
// (docs/specs/control.md): no CPU of the guest accesses GPU memory. Look, LookEach, Put and Get copy by way of guest
// memory that the NIC reaches.
//
// At most four calls of a Memory's methods work at a time, and others wait. Each of the four has a table of 1024
// entries and 256 KiB of staging memory.
//
// The package is not API (README, Stability).
package engine

import (
	"context"
	"fmt"
	"sync/atomic"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/devmembase"
)

// Runner runs jobs on the guest's GPUs. When RunJob returns, the job does not access memory, unless the NIC does not
// answer or the Runner was closed.
type Runner interface {
	RunJob(ctx context.Context, j control.Job) (control.JobStatus, error)
}

// DMA allocates guest memory that the NIC reaches, and that stays until the NIC is closed.
type DMA interface {
	AllocDMA(size int) (b []byte, iova uint64, err error)
}

const (
	jobs       = 4
	maxEntries = 1024
	tableLen   = maxEntries * control.JobEntryLen // bytes: whole pages
	staging    = 256 << 10
	maxEntry   = 1 << 30 // most bytes of an entry of Within; the field has 32 bits; a multiple of every type's size
)

// Memory implements devmem.Memory.
type Memory = devmembase.Memory

type worker struct {
	run   Runner
	dma   DMA
	slots chan *slot
}

// New makes a Memory that works on a guest's GPUs.
func New(run Runner, dma DMA) *Memory {
	w := &worker{run: run, dma: dma, slots: make(chan *slot, jobs)}
	for range jobs {
		w.slots <- &slot{}
	}
	return devmembase.NewMemory(w)
}

type slot struct {
	table, data         []byte
	tableIOVA, dataIOVA uint64
	n                   int
	used                int // bytes of data in use
}

func (w *worker) take(ctx context.Context) (*slot, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	select {
	case s := <-w.slots:
		s.n, s.used = 0, 0
		if s.table != nil {
			return s, nil
		}
		b, iova, err := w.dma.AllocDMA(tableLen + staging)
		if err != nil {
			w.slots <- s
			return nil, fmt.Errorf("memory for jobs: %w", err)
		}
		s.table, s.data = b[:tableLen], b[tableLen:][:staging]
		s.tableIOVA, s.dataIOVA = iova, iova+tableLen
		return s, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (s *slot) add(src, dst uint64, n int) {
	e := control.JobEntry{Src: src, Dst: dst, Len: uint32(n)}
	e.Encode((*[control.JobEntryLen]byte)(s.table[s.n*control.JobEntryLen:]))
	s.n++
}

func (w *worker) do(ctx context.Context, s *slot, op control.JobOp, gpu int, t devmem.Type,
	count *atomic.Uint64) error {
	if s.n == 0 {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	done, err := w.run.RunJob(ctx, control.Job{Op: op, GPU: uint16(gpu), Entries: uint32(s.n), Table: s.tableIOVA,
		Seed: uint64(t)})
	count.Add(done.Bytes)
	s.n, s.used = 0, 0
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return err
}

// ToHost implements devmembase.Worker.
func (w *worker) ToHost(ctx context.Context, dst []byte, b devmem.Buffer, from devmembase.Pieces,
	count *atomic.Uint64) error {
	s, err := w.take(ctx)
	if err != nil {
		return err
	}
	defer func() { w.slots <- s }()
	flush := func() error {
		n := s.used
		if err := w.do(ctx, s, control.JobToGuest, b.GPU(), 0, count); err != nil {
			return err
		}
		dst = dst[copy(dst, s.data[:n]):]
		return nil
	}
	for i := range from.Len() {
		r := from.At(i)
		gpuOff := b.Offset() + r.Off
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

// FromHost implements devmembase.Worker.
func (w *worker) FromHost(ctx context.Context, b devmem.Buffer, off uint64, src []byte, count *atomic.Uint64) error {
	s, err := w.take(ctx)
	if err != nil {
		return err
	}
	defer func() { w.slots <- s }()
	for gpuOff := b.Offset() + off; len(src) > 0; {
		n := copy(s.data, src)
		s.add(s.dataIOVA, gpuOff, n)
		if err := w.do(ctx, s, control.JobFromGuest, b.GPU(), 0, count); err != nil {
			return err
		}
		src, gpuOff = src[n:], gpuOff+uint64(n)
	}
	return nil
}

// Within implements devmembase.Worker.
func (w *worker) Within(ctx context.Context, t devmem.Type, dst, src devmem.Buffer, moves []devmem.Move,
	count *atomic.Uint64) error {
	op := control.JobGather
	if t != 0 {
		op = control.JobReduce
	}
	s, err := w.take(ctx)
	if err != nil {
		return err
	}
	defer func() { w.slots <- s }()
	for _, v := range moves {
		from, to := src.Offset()+v.Src, dst.Offset()+v.Dst
		for v.Len > 0 {
			if s.n == maxEntries {
				if err := w.do(ctx, s, op, dst.GPU(), t, count); err != nil {
					return err
				}
			}
			n := min(v.Len, maxEntry)
			s.add(from, to, int(n))
			from, to, v.Len = from+n, to+n, v.Len-n
		}
	}
	return w.do(ctx, s, op, dst.GPU(), t, count)
}

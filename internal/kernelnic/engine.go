package kernelnic

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/hugemem"
	"vnic.dev/vnic/internal/limits"
)

// maxEntries is the most entries in a table that an Engine gives the NIC; maxTables is the number of its tables.
const (
	maxEntries = 1024
	maxTables  = 8
)

// runner runs jobs whose GPU addresses are offsets in the GPU's memory: *control.Client.
type runner interface {
	RunJob(ctx context.Context, j control.Job) (control.JobStatus, error)
}

// Engine runs jobs whose GPU addresses are offsets in the window. It may split a job into several; the status is then
// the last job's, with the bytes of all these jobs. It refuses a table in GPU memory and a digest of several extents.
type Engine struct {
	run    runner
	w      *Window
	mem    *hugemem.Memory
	tables chan table // unused tables
}

type table struct {
	b    []byte
	iova uint64
}

func newEngine(run runner, w *Window, mem *hugemem.Memory) *Engine {
	e := &Engine{run: run, w: w, mem: mem, tables: make(chan table, maxTables)}
	for range maxTables {
		e.tables <- table{} // take allocates its memory at the first use
	}
	return e
}

// RunJob implements transfer.Engine.
func (e *Engine) RunJob(ctx context.Context, j control.Job) (control.JobStatus, error) {
	if int(j.GPU) != e.w.gpu {
		return control.JobStatus{}, fmt.Errorf("job on GPU %d: %w", j.GPU, unix.ENODEV)
	}
	switch j.Op {
	case control.JobFill, control.JobPoison, control.JobSHA256:
		return e.onRange(ctx, j)
	case control.JobGather, control.JobToGuest, control.JobFromGuest, control.JobReduce:
		return e.onTable(ctx, j)
	}
	return control.JobStatus{}, fmt.Errorf("job operation %d: %w", j.Op, unix.EINVAL)
}

func (e *Engine) onRange(ctx context.Context, j control.Job) (sum control.JobStatus, err error) {
	pieces, err := e.w.pieces(j.Off, j.Len)
	if err != nil {
		return sum, err
	}
	if j.Op == control.JobSHA256 && len(pieces) > 1 {
		return sum, fmt.Errorf("digest of memory in %d pieces: %w", len(pieces), unix.EOPNOTSUPP)
	}
	for _, p := range pieces {
		k := j
		k.Off, k.Len, k.Stream = p.GPUOff, p.Size, j.Stream+(p.Off-j.Off)
		if err := e.add(ctx, &sum, k); err != nil {
			return sum, err
		}
	}
	return sum, nil
}

// add runs a job, and sets sum to the job's status, with sum's earlier bytes added.
func (e *Engine) add(ctx context.Context, sum *control.JobStatus, j control.Job) error {
	s, err := e.run.RunJob(ctx, j)
	s.Bytes += sum.Bytes
	*sum = s
	return err
}

func (e *Engine) onTable(ctx context.Context, j control.Job) (sum control.JobStatus, err error) {
	if j.TableInGPU {
		return sum, fmt.Errorf("job with a table in GPU memory: %w", unix.EOPNOTSUPP)
	}
	in, err := e.mem.Slice(j.Table, uint64(j.Entries)*control.JobEntryLen)
	if err != nil {
		return sum, fmt.Errorf("job table: %w", err)
	}
	t, err := e.take(ctx)
	if err != nil {
		return sum, err
	}
	defer func() { e.tables <- t }()
	j.Table, j.Entries = t.iova, 0
	flush := func() error {
		if j.Entries == 0 {
			return nil
		}
		err := e.add(ctx, &sum, j)
		j.Entries = 0
		return err
	}
	for ; len(in) > 0; in = in[control.JobEntryLen:] {
		rest := decode(in)
		for rest.Len > 0 {
			n, one, err := e.translate(j.Op, rest)
			if err != nil {
				return sum, err
			}
			if j.Entries == maxEntries {
				if err := flush(); err != nil {
					return sum, err
				}
			}
			one.Encode((*[control.JobEntryLen]byte)(t.b[j.Entries*control.JobEntryLen:]))
			j.Entries++
			rest.Src, rest.Dst, rest.Len = rest.Src+uint64(n), rest.Dst+uint64(n), rest.Len-n
		}
	}
	return sum, flush()
}

// translate returns the first n bytes of an entry that are contiguous in the GPU's memory. In out, the entry's offsets
// in the window are offsets in the GPU's memory; a guest address is unchanged.
func (e *Engine) translate(op control.JobOp, in control.JobEntry) (n uint32, out control.JobEntry, err error) {
	out = in
	for _, side := range []struct {
		gpu  bool
		addr *uint64
	}{{op != control.JobFromGuest, &out.Src}, {op != control.JobToGuest, &out.Dst}} {
		if !side.gpu {
			continue
		}
		pieces, err := e.w.pieces(*side.addr, uint64(out.Len))
		if err != nil {
			return 0, out, fmt.Errorf("job entry: %w", err)
		}
		*side.addr, out.Len = pieces[0].GPUOff, uint32(pieces[0].Size)
	}
	return out.Len, out, nil
}

func decode(b []byte) control.JobEntry {
	le := binary.LittleEndian
	return control.JobEntry{Src: le.Uint64(b[0:]), Dst: le.Uint64(b[8:]), Len: le.Uint32(b[16:])}
}

// take waits for an unused table until ctx ends. The caller returns the table to e.tables.
func (e *Engine) take(ctx context.Context) (t table, err error) {
	select {
	case t = <-e.tables:
	case <-ctx.Done():
		return t, context.Cause(ctx)
	}
	if t.b == nil {
		if t.b, t.iova, err = e.mem.AllocDMA(maxEntries * control.JobEntryLen); err != nil {
			e.tables <- table{}
			return t, fmt.Errorf("job table: %w", err)
		}
	}
	return t, nil
}

// Registered is a range of GPU memory that is registered with the NIC as a buffer.
type Registered struct {
	Buffer uint32 // the NIC's buffer id
	Size   uint64 // bytes
}

// Register registers [off, off+size) of the window with the NIC, until release is called: one buffer for each extent
// that the range touches, in order. ENODEV: the window is not of GPU gpu, or there is none.
func (n *NIC) Register(gpu int, off, size uint64) (list []Registered, release func() error, err error) {
	w := n.window
	if w == nil || gpu != w.gpu {
		return nil, nil, fmt.Errorf("GPU %d: %w", gpu, unix.ENODEV)
	}
	if list, err = n.register(off, size); err != nil {
		return nil, nil, err
	}
	w.use(1)
	return list, func() error {
		w.use(-1)
		return n.unregister(list)
	}, nil
}

func (n *NIC) register(off, size uint64) (list []Registered, err error) {
	pieces, err := n.window.pieces(off, size)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), limits.GVECommand.Here())
	defer cancel()
	for _, p := range pieces {
		id, err := n.channel.ctl.RegisterBuffer(ctx, uint16(n.window.gpu), p.GPUOff, p.Size)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("register [%#x, +%#x) of GPU %d: %w", p.GPUOff, p.Size, n.window.gpu, err),
				n.unregister(list))
		}
		list = append(list, Registered{id, p.Size})
		if err := n.guard.note('+', id); err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", GuardName, err), n.unregister(list))
		}
	}
	return list, nil
}

func (n *NIC) unregister(list []Registered) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), limits.GVECommand.Here())
	defer cancel()
	for _, r := range list {
		uerr := Unregister(ctx, n.channel.ctl, r.Buffer)
		if uerr == nil {
			uerr = n.guard.note('-', r.Buffer)
		}
		err = errors.Join(err, uerr)
	}
	return err
}

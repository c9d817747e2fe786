package transfer

import (
	"context"
	"fmt"
	"sync"
	"syscall"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/limits"
)

const (
	// maxEntries bounds the entries of a job's table; Linux takes back at most as many tokens in one call
	// (devmem.MaxFrags).
	maxEntries = 1024
	tableBytes = maxEntries * control.JobEntryLen
	// stage is the size of slot.data, in bytes.
	stage = 1 << 20
	slots = 4
)

// slot is DMA memory for one running job: a table, and in some slots room for payload.
type slot struct {
	table     []byte
	tableIOVA uint64
	data      []byte // in mode copy, and in Node.linear; else nil
	dataIOVA  uint64
	entries   int           // of the table, in use
	n         int           // bytes of data in use
	full      chan struct{} // for a sender in mode copy: closed when an engine has filled data
}

// makeTables allocates the host memory of a receiver in mode devmem, unless it is there already.
func (n *Node) makeTables() error {
	if n.frags == nil {
		n.frags = make([]devmem.Frag, maxEntries)
	}
	if err := n.makeSlots(false); err != nil {
		return err
	}
	return n.linear.make(n.mem, true)
}

// makeSlots allocates the tables of the staging slots and, if data is true, their room for payload, unless they
// are there already.
func (n *Node) makeSlots(data bool) error {
	if n.staging == nil {
		n.staging = make([]slot, slots)
	}
	for i := range n.staging {
		if err := n.staging[i].make(n.mem, data); err != nil {
			return err
		}
	}
	return nil
}

func (s *slot) make(m Memory, data bool) (err error) {
	if s.table == nil {
		if s.table, s.tableIOVA, err = m.AllocDMA(tableBytes); err != nil {
			return fmt.Errorf("memory for a table of %d entries: %w", maxEntries, err)
		}
	}
	if data && s.data == nil {
		if s.data, s.dataIOVA, err = m.AllocDMA(stage); err != nil {
			return fmt.Errorf("memory for staging: %w", err)
		}
	}
	return nil
}

func (s *slot) reset() { s.entries, s.n = 0, 0 }

func (s *slot) add(src, dst uint64, n uint32) {
	e := control.JobEntry{Src: src, Dst: dst, Len: n}
	e.Encode((*[control.JobEntryLen]byte)(s.table[s.entries*control.JobEntryLen:]))
	s.entries++
}

// run runs one job with a slot's table, and waits for it.
func (n *Node) run(ctx context.Context, s *session, op control.JobOp, sl *slot) error {
	limit := max(s.conf.stall(), limits.Engine.Here())
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("no end after %v: %w", limit, syscall.ETIMEDOUT))
	defer cancel()
	_, err := n.engine.RunJob(ctx, control.Job{Op: op, GPU: uint16(s.conf.GPU), Table: sl.tableIOVA,
		Entries: uint32(sl.entries)})
	if err != nil {
		return fmt.Errorf("engine job of %d entries: %w", sl.entries, because(ctx, err))
	}
	return nil
}

// pipe distributes slots to jobs. The first error of a job cancels the pipe's context. Until pipe.end, the end of that
// context aborts the connection, to end calls that wait for it.
type pipe struct {
	fail context.CancelCauseFunc
	keep func() bool
	free chan *slot
	jobs sync.WaitGroup
}

func (n *Node) newPipe(ctx context.Context, c devmem.Conn) (context.Context, *pipe) {
	ctx, fail := context.WithCancelCause(ctx)
	p := &pipe{fail: fail, keep: context.AfterFunc(ctx, func() { abort(c) }), free: make(chan *slot, len(n.staging))}
	for i := range n.staging {
		p.free <- &n.staging[i]
	}
	return ctx, p
}

func (p *pipe) end() {
	p.keep()
	p.fail(nil)
	p.jobs.Wait()
}

func (p *pipe) take(ctx context.Context) (*slot, error) {
	select {
	case s := <-p.free:
		s.reset()
		return s, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (p *pipe) start(f func() error) {
	p.jobs.Go(func() {
		if err := f(); err != nil {
			p.fail(err)
		}
	})
}

// drain takes all slots: then the engines have done every job. If ctx ends before, it returns ctx's cause.
func (p *pipe) drain(ctx context.Context) error {
	for range cap(p.free) {
		if _, err := p.take(ctx); err != nil {
			return err
		}
	}
	return nil
}

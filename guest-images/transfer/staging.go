package transfer

import (
	"context"
	"encoding/binary"
	"fmt"

	"vnic.dev/vnic/control"
)

const (
	// maxEntries is how many fragments one gather job takes: no more tokens can be given back in one call.
	maxEntries = 1024
	tableBytes = maxEntries * control.JobEntryLen
	// stage is how much of mode copy is in one piece of guest RAM.
	stage = 1 << 20
	slots = 4
)

// slot is DMA memory for one job under way: a table, and room for payload on its way through guest RAM.
type slot struct {
	table     []byte
	tableIOVA uint64
	data      []byte // in mode copy, and for linear bytes
	dataIOVA  uint64
	entries   int
	n         int // bytes of data in use
}

func (n *Node) makeStaging() error {
	for len(n.staging) < slots {
		var s slot
		var err error
		if s.table, s.tableIOVA, err = n.mem.AllocDMA(tableBytes); err != nil {
			return fmt.Errorf("memory for tables: %w", err)
		}
		if s.data, s.dataIOVA, err = n.mem.AllocDMA(stage); err != nil {
			return fmt.Errorf("memory for staging: %w", err)
		}
		n.staging = append(n.staging, s)
	}
	return nil
}

// reset makes the slot empty.
func (s *slot) reset() { s.entries, s.n = 0, 0 }

// add puts an entry into the table (control.JobEntry).
func (s *slot) add(src, dst uint64, n uint32) {
	b := s.table[s.entries*control.JobEntryLen:][:control.JobEntryLen]
	binary.LittleEndian.PutUint64(b[0:], src)
	binary.LittleEndian.PutUint64(b[8:], dst)
	binary.LittleEndian.PutUint32(b[16:], n)
	binary.LittleEndian.PutUint32(b[20:], 0)
	s.entries++
}

// run has an engine carry out the slot's table.
func (n *Node) run(ctx context.Context, op control.JobOp, s *slot) error {
	_, err := n.ctl.RunJob(ctx, control.Job{Op: op, GPU: uint16(n.conf.GPU), Table: s.tableIOVA, Entries: uint32(s.entries)})
	if err != nil {
		return fmt.Errorf("engine job of %d entries: %w", s.entries, err)
	}
	return nil
}

// pipe hands slots round: take waits for a free one, and the first error ends everything.
type pipe struct {
	ctx  context.Context
	free chan *slot
	fail context.CancelCauseFunc
}

func (n *Node) newPipe(ctx context.Context) (*pipe, context.CancelFunc) {
	ctx, fail := context.WithCancelCause(ctx)
	p := &pipe{ctx: ctx, free: make(chan *slot, len(n.staging)), fail: fail}
	for i := range n.staging {
		p.free <- &n.staging[i]
	}
	return p, func() { fail(nil) }
}

func (p *pipe) take() (*slot, error) {
	select {
	case s := <-p.free:
		s.reset()
		return s, nil
	case <-p.ctx.Done():
		return nil, context.Cause(p.ctx)
	}
}

// drain waits until all slots are free again: nothing is under way.
func (p *pipe) drain(n int) error {
	for range n {
		if _, err := p.take(); err != nil {
			return err
		}
	}
	return nil
}

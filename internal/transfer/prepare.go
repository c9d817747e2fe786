package transfer

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/limits"
)

// Prepare begins a transfer: it registers the GPU memory with the NIC and fills it. In mode devmem it then binds the
// sender's data, or the receiver's page pool to its queues, and steers the connection to the first queue. If a step
// fails, it finishes the transfer. EBUSY: another transfer is not finished.
func (n *Node) Prepare(ctx context.Context, p PrepareArgs) error {
	if err := errors.Join(ctx.Err(), p.check()); err != nil {
		return fmt.Errorf("prepare: %w", err)
	}
	s := &session{conf: p, running: map[*operation]struct{}{}, idle: make(chan struct{})}
	n.mu.Lock()
	if n.now != nil {
		n.mu.Unlock()
		return fmt.Errorf("prepare: another transfer is not finished: %w", syscall.EBUSY)
	}
	n.now = s
	inner, end := n.enter(ctx, s)
	n.mu.Unlock()
	err := n.prepare(inner, s)
	if err != nil {
		err = fmt.Errorf("prepare: %w", because(inner, err))
	}
	end()
	if err == nil {
		return nil
	}
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), limits.Finish.Here())
	defer cancel()
	if ferr := n.finish(clean, s); ferr != nil {
		err = errors.Join(err, ferr)
	}
	return err
}

// because adds the cause of ctx's end to err, if ctx has ended and err is not nil.
func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(err, cause) {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}

func (n *Node) prepare(ctx context.Context, s *session) (err error) {
	p := &s.conf
	if s.data, err = n.dev.Register(p.GPU, p.Off, p.Bytes); err != nil {
		return fmt.Errorf("data [%#x, +%#x) of GPU %d: %w", p.Off, p.Bytes, p.GPU, err)
	}
	job := control.Job{Op: control.JobPoison, GPU: uint16(p.GPU), Off: p.Off, Len: p.Bytes, Seed: p.Seed}
	if p.Send {
		job.Op, job.Len = control.JobFill, p.Len
	}
	if _, err := n.engine.RunJob(ctx, job); err != nil {
		return fmt.Errorf("fill data: %w", err)
	}
	switch {
	case p.Mode == Copy:
		return n.makeSlots(true)
	case p.Send:
		if s.tx, err = n.dev.BindTX(s.data); err != nil {
			return fmt.Errorf("bind-tx: %w", err)
		}
		return nil
	}
	if s.pool, err = n.dev.Register(p.GPU, p.PoolOff, p.PoolBytes); err != nil {
		return fmt.Errorf("page pool [%#x, +%#x) of GPU %d: %w", p.PoolOff, p.PoolBytes, p.GPU, err)
	}
	job.Off, job.Len = p.PoolOff, p.PoolBytes
	if _, err := n.engine.RunJob(ctx, job); err != nil {
		return fmt.Errorf("poison pool: %w", err)
	}
	if err := errors.Join(n.makeTables(), ctx.Err()); err != nil {
		return err
	}
	if s.rx, err = n.dev.BindRX(s.pool, p.Queues...); err != nil {
		return fmt.Errorf("bind-rx: %w", err)
	}
	if s.flow, err = n.dev.AddFlow(devmem.Flow{Src: p.Remote, Dst: p.Local, Queue: p.Queues[0]}); err != nil {
		return fmt.Errorf("flow rule: %w", err)
	}
	return nil
}

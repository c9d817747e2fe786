package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"
	"time"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/control"
)

// Receive receives all bytes of the transfer into the GPU memory from PrepareArgs.Off on.
func (n *Node) Receive(ctx context.Context) (Result, error) {
	return n.move(ctx, "receive", false, n.receiveCopy, n.receiveDevmem)
}

// receiveDevmem receives fragments in the page pool. After an engine has copied them to the data, it returns the tokens
// that held does not keep, after LateTokens' delay.
func (n *Node) receiveDevmem(ctx context.Context, p *pipe, s *session, r *Result) error {
	h := &held{limit: s.conf.Hold / devmem.PageSize, wait: time.Duration(s.conf.HoldSeconds) * time.Second}
	n.late.begin()
	defer func() {
		r.Held, r.Stalls = h.counts()
		r.Late = n.late.mostLate()
	}()
	for r.Bytes < s.conf.Len {
		sl, err := p.take(ctx)
		if err != nil {
			return err
		}
		var tokens devmem.Tokens
		if err := n.fill(ctx, s, sl, h, &tokens, r); err != nil {
			return err
		}
		r.Jobs++
		p.start(func() error {
			if err := n.run(ctx, s, control.JobGather, sl); err != nil {
				return err
			}
			rest := h.take(tokens)
			if by := n.late.now(); by > 0 {
				p.free <- sl
				return n.late.giveBack(ctx, by, &rest, s.conn)
			}
			if rest.Len() > 0 {
				if err := rest.GiveBack(s.conn); err != nil {
					return err
				}
			}
			p.free <- sl
			return nil
		})
	}
	return p.drain(ctx)
}

// fill receives until the slot's table is full or all bytes have come. It waits for data while the table is empty;
// later it returns when no more is available.
func (n *Node) fill(ctx context.Context, s *session, sl *slot, h *held, t *devmem.Tokens, r *Result) error {
	for sl.entries < maxEntries && r.Bytes < s.conf.Len {
		var flags devmem.RecvFlags
		if sl.entries > 0 {
			flags = devmem.DontWait // copy the table's fragments before waiting for more
		}
		room := n.linear.data[:min(stage, s.conf.Len-r.Bytes)]
		if h.limit > 0 {
			if err := s.conn.SetReadDeadline(h.deadline()); err != nil {
				return err
			}
		}
		got, nf, nl, err := s.conn.RecvDevmem(n.frags[:maxEntries-sl.entries], room, flags)
		if late, herr := h.stalled(s.conn, err); late {
			if herr != nil {
				return herr
			}
			continue
		}
		switch {
		case sl.entries > 0 && errors.Is(err, syscall.EAGAIN):
			return nil
		case err == nil && got == 0, errors.Is(err, io.EOF):
			return fmt.Errorf("connection ended after %d of %d bytes: %w", r.Bytes, s.conf.Len, io.ErrUnexpectedEOF)
		case err != nil:
			return fmt.Errorf("receive after %d of %d bytes: %w", r.Bytes, s.conf.Len, err)
		}
		if err := n.place(ctx, s, sl, n.frags[:nf], nl, t, r); err != nil {
			return err
		}
	}
	return nil
}

// place adds received fragments to the slot's table, and their tokens to t. Linear bytes lie in guest RAM, in n.linear:
// an engine copies them to the GPU before place returns.
func (n *Node) place(ctx context.Context, s *session, sl *slot, frags []devmem.Frag, linear int, t *devmem.Tokens,
	r *Result) error {
	lin := &n.linear
	lin.reset()
	host := func(k int) {
		lin.add(lin.dataIOVA+uint64(lin.n), s.conf.Off+r.Bytes, uint32(k))
		lin.n += k
		r.Bytes += uint64(k)
		r.Linear += uint64(k)
	}
	if len(frags) == 0 { // all bytes are linear: their packets came through no bound queue
		host(linear)
	}
	for _, f := range frags {
		if f.Kind == devmem.Linear {
			host(int(f.Size))
			continue
		}
		sl.add(s.pool.Offset()+f.Off, s.conf.Off+r.Bytes, f.Size)
		t.Add(f.Token)
		r.Bytes += uint64(f.Size)
		r.Frags++
	}
	if lin.entries == 0 {
		return nil
	}
	r.Jobs++
	return n.run(ctx, s, control.JobFromGuest, lin)
}

// receiveCopy reads from the connection into slots in guest RAM, and makes engines copy the bytes to the GPU.
func (n *Node) receiveCopy(ctx context.Context, p *pipe, s *session, r *Result) error {
	for r.Bytes < s.conf.Len {
		sl, err := p.take(ctx)
		if err != nil {
			return err
		}
		sl.n = int(min(s.conf.Len-r.Bytes, stage))
		k, err := io.ReadFull(s.conn, sl.data[:sl.n])
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return fmt.Errorf("read after %d of %d bytes: %w", r.Bytes+uint64(k), s.conf.Len, err)
		}
		sl.add(sl.dataIOVA, s.conf.Off+r.Bytes, uint32(sl.n))
		r.Bytes += uint64(sl.n)
		r.Jobs++
		p.start(func() error {
			err := n.run(ctx, s, control.JobFromGuest, sl)
			if err == nil {
				p.free <- sl
			}
			return err
		})
	}
	return p.drain(ctx)
}

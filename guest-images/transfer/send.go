package transfer

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"vnic.dev/vnic/control"
	"vnic.dev/vnic/devmem"
)

// sendPiece is how much one send call of mode devmem names.
const sendPiece = 1 << 20

// Send sends all bytes, and returns when their memory is free again: acknowledged, and not in use by the NIC.
func (n *Node) Send(ctx context.Context) (r Result, err error) {
	conn := n.conn
	if conn == nil {
		return r, fmt.Errorf("send: not connected: %w", syscall.ENOTCONN)
	}
	err = n.measure(&r, func() error {
		if n.conf.Mode == Copy {
			return n.sendCopy(ctx, conn, &r)
		}
		return n.sendDevmem(ctx, conn, &r)
	})
	return r, err
}

func (n *Node) sendDevmem(ctx context.Context, conn devmem.Conn, r *Result) error {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	calls := uint32(0)
	for r.Bytes < n.conf.Len {
		k := min(n.conf.Len-r.Bytes, sendPiece)
		got, err := conn.SendDevmem(n.tx.ID(), []devmem.Range{{Off: r.Bytes, Len: k}})
		r.Bytes += uint64(got)
		if got > 0 {
			calls++
		}
		if err != nil {
			return errors.Join(ctx.Err(), fmt.Errorf("send after %d of %d bytes: %w", r.Bytes, n.conf.Len, err))
		}
	}
	for done := uint32(0); done < calls; { // in any order, each send once
		lo, hi, err := conn.ReadCompletion(time.Time{})
		if err != nil {
			return errors.Join(ctx.Err(), fmt.Errorf("wait for completion of send %d of %d: %w", done, calls, err))
		}
		if hi < lo || hi >= calls || hi-lo >= calls-done {
			return fmt.Errorf("completion of sends %d to %d after %d of %d: %w", lo, hi, done, calls, syscall.EPROTO)
		}
		done += hi - lo + 1
	}
	return nil
}

// sendCopy has an engine copy to guest RAM ahead of the socket.
func (n *Node) sendCopy(ctx context.Context, conn devmem.Conn, r *Result) error {
	p, cancel := n.newPipe(ctx)
	copied := make(chan *slot, len(n.staging))
	done := make(chan struct{})
	defer func() { <-done }()
	defer cancel()
	stop := context.AfterFunc(p.ctx, func() { _ = conn.Close() })
	defer stop()
	go func() {
		defer close(done)
		defer close(copied)
		for off := uint64(0); off < n.conf.Len; {
			s, err := p.take()
			if err != nil {
				return
			}
			s.n = int(min(n.conf.Len-off, stage))
			s.add(n.conf.Off+off, s.dataIOVA, uint32(s.n))
			if err := n.run(p.ctx, control.JobToGuest, s); err != nil {
				p.fail(err)
				return
			}
			off += uint64(s.n)
			copied <- s
		}
	}()
	for s := range copied {
		got, err := conn.Write(s.data[:s.n])
		r.Bytes += uint64(got)
		r.Jobs++
		if err != nil {
			return errors.Join(context.Cause(p.ctx), fmt.Errorf("write after %d of %d bytes: %w", r.Bytes, n.conf.Len, err))
		}
		p.free <- s
	}
	if r.Bytes < n.conf.Len {
		return context.Cause(p.ctx)
	}
	return nil
}

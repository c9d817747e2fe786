package transfer

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/control"
)

const sendPiece = 1 << 20

// Send sends all bytes of the transfer. Without an error it returns when their memory may change again: in mode devmem
// when the peer has acknowledged them and the NIC no longer uses them; in mode copy when the connection's buffer has
// them.
func (n *Node) Send(ctx context.Context) (Result, error) {
	return n.move(ctx, "send", true, n.sendCopy, n.sendDevmem)
}

func (n *Node) sendDevmem(_ context.Context, _ *pipe, s *session, r *Result) error {
	calls := uint32(0)
	for r.Bytes < s.conf.Len {
		k := min(s.conf.Len-r.Bytes, sendPiece)
		got, err := s.conn.SendDevmem(s.tx.ID(), []devmem.Range{{Off: r.Bytes, Len: k}})
		r.Bytes += uint64(got)
		if got > 0 {
			calls++
		}
		if err != nil {
			return fmt.Errorf("send after %d of %d bytes: %w", r.Bytes, s.conf.Len, err)
		}
	}
	for done := uint32(0); done < calls; { // completions come in any order, each for one or more sends
		lo, hi, err := s.conn.ReadCompletion(time.Time{})
		if err != nil {
			return fmt.Errorf("wait for completion of send %d of %d: %w", done+1, calls, err)
		}
		if hi < lo || hi >= calls || hi-lo >= calls-done {
			return fmt.Errorf("completion of sends %d to %d after %d of %d: %w", lo, hi, done, calls, syscall.EPROTO)
		}
		done += hi - lo + 1
	}
	return nil
}

// sendCopy makes engines copy the data to slots in guest RAM, and meanwhile writes full slots to the connection.
func (n *Node) sendCopy(ctx context.Context, p *pipe, s *session, r *Result) error {
	ahead := make(chan *slot, len(n.staging)) // in stream order
	p.start(func() error {
		defer close(ahead)
		for off := uint64(0); off < s.conf.Len; {
			sl, err := p.take(ctx)
			if err != nil {
				return err
			}
			sl.n = int(min(s.conf.Len-off, stage))
			sl.add(s.conf.Off+off, sl.dataIOVA, uint32(sl.n))
			off += uint64(sl.n)
			sl.full = make(chan struct{})
			ahead <- sl
			p.start(func() error {
				err := n.run(ctx, s, control.JobToGuest, sl)
				if err == nil {
					close(sl.full)
				}
				return err
			})
		}
		return nil
	})
	for sl := range ahead {
		select {
		case <-sl.full:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		r.Jobs++
		k, err := s.conn.Write(sl.data[:sl.n])
		r.Bytes += uint64(k)
		if err != nil {
			return fmt.Errorf("write after %d of %d bytes: %w", r.Bytes, s.conf.Len, err)
		}
		p.free <- sl
	}
	if r.Bytes < s.conf.Len {
		return context.Cause(ctx)
	}
	return nil
}

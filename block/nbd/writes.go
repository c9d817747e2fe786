package nbd

import (
	"context"
	"fmt"
)

// sendWrites sends writes and flushes. It completes them when the server has answered and TCP no longer uses a
// write's memory. Sender.Wait waits for all sent data, so sendWrites calls it only when no request is queued.
func (d *Device) sendWrites(ctx context.Context) error {
	var b [requestLen]byte
	var ready []uint32
	for {
		d.mu.Lock()
		i, ok := d.take(d.writes, &b)
		s := &d.slots[i]
		op, flush := s.op, s.flush
		if !ok {
			ready, d.ready = d.ready, ready[:0]
		}
		d.mu.Unlock()
		switch {
		case ok:
			wake(d.writes.receive)
			if _, err := d.writes.Write(b[:]); err != nil {
				return fmt.Errorf("the request of a %v: %w", op, err)
			}
			if !flush {
				if err := d.sender.Send(ctx, d.c.Data, d.tx, op.Mem, op.Len); err != nil {
					return fmt.Errorf("the data of a %v: %w", op, err)
				}
			}
			d.mu.Lock()
			s.handed = true
			if s.state == answered {
				d.settle(i)
			}
			d.mu.Unlock()
		case len(ready) > 0:
			if err := d.sender.Wait(); err != nil {
				return fmt.Errorf("the acknowledgment of writes: %w", err)
			}
			d.mu.Lock()
			d.finish(ready)
			d.mu.Unlock()
		case !sleep(ctx, d.writes.send):
			return nil
		}
	}
}

// settle adds to ready a write or flush that was sent and answered. The caller holds mu.
func (d *Device) settle(i uint32) {
	d.ready = append(d.ready, i)
	wake(d.writes.send)
}

func (d *Device) receiveWrites(ctx context.Context) error {
	var buf [maxBatch * replyLen]byte
	n := 0 // bytes of an incomplete reply in buf
	for {
		d.mu.Lock()
		out := d.writes.out
		d.mu.Unlock()
		if out == 0 {
			if !sleep(ctx, d.writes.receive) {
				return nil
			}
			continue
		}
		k, err := d.writes.Read(buf[n:])
		if err != nil {
			return ended("the reply to a write", err)
		}
		n += k
		b := buf[:n]
		for ; len(b) >= replyLen; b = b[replyLen:] {
			var r reply
			r.decode((*[replyLen]byte)(b))
			if _, _, err := d.answer(d.writes, &r); err != nil {
				return err
			}
		}
		n = copy(buf[:], b)
	}
}

package nbd

import (
	"context"
	"errors"
	"fmt"
	"io"

	"vnic.dev/vnic/block"
	"vnic.dev/vnic/devmem"
)

// maxBatch is the most requests of reads in one Write, and replies to writes in one Read.
const maxBatch = 64

// sleep waits for ch and returns true, or for the end of ctx and returns false.
func sleep(ctx context.Context, ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	case <-ctx.Done():
		return false
	}
}

// sendReads sends requests of reads. Replies need another goroutine: a server may stop reading requests until
// it can send replies.
func (d *Device) sendReads(ctx context.Context) error {
	for {
		n := 0
		d.mu.Lock()
		for n < len(d.requests) {
			if _, ok := d.take(d.reads, (*[requestLen]byte)(d.requests[n:])); !ok {
				break
			}
			n += requestLen
		}
		d.mu.Unlock()
		if n == 0 {
			if !sleep(ctx, d.reads.send) {
				return nil
			}
			continue
		}
		wake(d.reads.receive)
		if _, err := d.reads.Write(d.requests[:n]); err != nil {
			return fmt.Errorf("requests of reads: %w", err)
		}
	}
}

func (d *Device) receiveReads(ctx context.Context) error {
	for {
		d.mu.Lock()
		out := d.reads.out
		d.mu.Unlock()
		if out == 0 {
			if !sleep(ctx, d.reads.receive) {
				return nil
			}
			continue
		}
		err := d.window(ctx)
		d.host.Store(d.stream.HostBytes())
		if err != nil {
			return err
		}
	}
}

// window processes one reply to a read, and then others that have arrived, as long as their headers are where plan
// expects them.
func (d *Device) window(ctx context.Context) error {
	if err := d.stream.Fill(ctx, replyLen); err != nil {
		return ended("the head of a reply", err)
	}
	each := d.plan()
	heads := d.heads[:each.Count*replyLen]
	if err := d.stream.LookEach(ctx, heads, each); err != nil {
		return err
	}
	if !d.c.Copy {
		d.looked.Add(uint64(len(heads)))
		d.looks.Add(1)
	}
	for ; len(heads) > 0; heads = heads[replyLen:] {
		var r reply
		r.decode((*[replyLen]byte)(heads))
		i, op, err := d.answer(d.reads, &r)
		if err == nil {
			err = d.stream.Skip(replyLen)
		}
		if err != nil {
			return errors.Join(err, d.land(ctx))
		}
		if r.Error == 0 {
			err = d.data(ctx, op)
		}
		if err != nil {
			return err
		}
		d.landed = append(d.landed, i)
		if r.Error != 0 || op.Len+replyLen != each.Stride {
			break // the next header is elsewhere
		}
	}
	return d.land(ctx)
}

// plan returns where in the stream the arrived headers are, if all reads succeed: at a fixed distance if the reads
// in sizes have one length, otherwise only the first.
func (d *Device) plan() devmem.Strided {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.sizes) != 1 {
		return devmem.Strided{Len: replyLen, Count: 1}
	}
	stride := d.sizes[0].n + replyLen
	n := 1 + (d.stream.Len()-replyLen)/stride
	return devmem.Strided{Stride: stride, Len: replyLen, Count: int(min(n, uint64(d.sizes[0].reads)))}
}

// data takes a read's data from the stream, and waits for what has not arrived.
func (d *Device) data(ctx context.Context, op block.Op) error {
	n := min(op.Len, d.stream.Len())
	if err := d.stream.Take(ctx, d.c.Data, op.Mem, n); err != nil {
		return err
	}
	if n == op.Len {
		return nil
	}
	if err := d.land(ctx); err != nil { // before the wait: Do can start more operations meanwhile
		return err
	}
	if err := d.stream.Receive(ctx, d.c.Data, op.Mem+n, op.Len-n); err != nil {
		return ended(fmt.Sprintf("the data of the %v", op), err)
	}
	return nil
}

// land moves the taken data to its memory, and then passes the reads in d.landed to Do.
func (d *Device) land(ctx context.Context) error {
	if err := d.stream.Flush(ctx); err != nil {
		return err
	}
	if len(d.landed) > 0 {
		d.mu.Lock()
		d.finish(d.landed)
		d.mu.Unlock()
		d.landed = d.landed[:0]
	}
	return nil
}

func ended(where string, err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("the server ended it where %s should be: %w", where, io.ErrUnexpectedEOF)
	}
	return fmt.Errorf("%s: %w", where, err)
}

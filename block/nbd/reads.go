package nbd

import (
	"context"
	"errors"
	"fmt"
	"io"

	"vnic.dev/vnic/block"
	"vnic.dev/vnic/devmem"
)

// maxBatch is how many requests of reads are sent with one Write.
const maxBatch = 64

// sleep waits for ch; it returns false if the work must end.
func sleep(ctx context.Context, ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	case <-ctx.Done():
		return false
	}
}

// sendReads is the goroutine that sends requests of reads. Receiving needs another goroutine: a
// server may wait for room for replies before it takes more requests.
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

// receiveReads is the goroutine that receives the replies to reads.
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

// window takes the replies whose headers have arrived.
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
			break // what follows are not the headers that were read
		}
	}
	return d.land(ctx)
}

// plan returns where the arrived headers are: at a fixed distance while all reads in progress have
// the same length, otherwise only the first one.
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

// data takes a read's data to its memory, and waits for data that has not arrived.
func (d *Device) data(ctx context.Context, op block.Op) error {
	n := min(op.Len, d.stream.Len())
	if err := d.stream.Take(ctx, d.c.Data, op.Mem, n); err != nil {
		return err
	}
	if n == op.Len {
		return nil
	}
	if err := d.land(ctx); err != nil { // before it waits, because Do may have more operations to start
		return err
	}
	if err := d.stream.Receive(ctx, d.c.Data, op.Mem+n, op.Len-n); err != nil {
		return ended(fmt.Sprintf("the data of the %v", op), err)
	}
	return nil
}

// land moves the taken data to its memory, and reports the reads to Do.
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

// ended adds to err where the stream is, and whether the server has ended it.
func ended(where string, err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("the server ended it where %s should be: %w", where, io.ErrUnexpectedEOF)
	}
	return fmt.Errorf("%s: %w", where, err)
}

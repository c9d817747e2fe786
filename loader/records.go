package loader

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"syscall"
	"time"

	"vnic.dev/vnic/devmem"
)

const maxDepth = 1 << 16

// RecordsConfig configures how a file of records is read.
type RecordsConfig struct {
	Buffer devmem.Buffer // with room for Depth batches from Off on (ENOSPC)
	Off    uint64        // where the batches begin in Buffer, in bytes

	Skip       uint64 // bytes of the file before the first record
	RecordSize uint64 // in bytes; the bytes after Skip must be whole records (EINVAL)
	Batch      uint64 // records in a batch; the last batch has the rest
	Depth      int    // most batches that are being fetched, ready, or held by the consumer, together: 1 to 65536
}

// Records is a file of records of one size. One consumer takes it batch by batch (Next), in the order of the file.
type Records struct {
	o      *Object
	c      RecordsConfig
	size   uint64 // bytes of the file after Skip
	each   uint64 // bytes of a full batch
	count  uint64 // batches of the file
	cancel context.CancelCauseFunc
	free   chan struct{}   // one element for each free slot; a slot is the room for a batch in Buffer
	ready  []chan struct{} // by slot; has an element when the slot's batch is complete, until Next takes it
	ended  chan struct{}   // closed when the fetch has ended
	err    error           // valid after ended is closed

	next, held uint64 // only the consumer uses these

	now   func() time.Time
	asked time.Time // when Next returned last
	stats RecordsStats
}

// Batch is a complete batch in memory.
type Batch struct {
	Index   uint64 // from 0
	First   uint64 // the number of its first record, from 0 after RecordsConfig.Skip
	Records uint64
	Off     uint64 // in RecordsConfig.Buffer
	Len     uint64 // in bytes
}

// RecordsStats counts what the consumer received, and measures its time.
type RecordsStats struct {
	Batches, Records, Bytes uint64
	Waited                  time.Duration // in Next
	First                   time.Duration // in the call of Next that returned the first batch
	Busy                    time.Duration // between calls of Next
}

// Share returns the part of the consumer's time, Waited + Busy, that is Waited: from 0 to 1, and 0 if both are 0.
func (s *RecordsStats) Share() float64 {
	if s.Waited+s.Busy == 0 {
		return 0
	}
	return float64(s.Waited) / float64(s.Waited+s.Busy)
}

// check returns the length of a full batch in bytes, or EINVAL or ENOSPC. file is the length of the file in bytes.
func (c *RecordsConfig) check(file uint64) (each uint64, err error) {
	over, each := bits.Mul64(c.RecordSize, c.Batch)
	switch {
	case c.Buffer == nil || each == 0 || over != 0:
		return 0, fmt.Errorf("%d records of %d bytes in a batch: %w", c.Batch, c.RecordSize, syscall.EINVAL)
	case c.Depth < 1 || c.Depth > maxDepth:
		return 0, fmt.Errorf("%d batches at a time: 1 to %d: %w", c.Depth, maxDepth, syscall.EINVAL)
	case c.Skip >= file || (file-c.Skip)%c.RecordSize != 0:
		return 0, fmt.Errorf("%d bytes behind the first %d: not records of %d bytes: %w", file-min(c.Skip, file), c.Skip,
			c.RecordSize, syscall.EINVAL)
	}
	over, all := bits.Mul64(each, uint64(c.Depth))
	if size := c.Buffer.Size(); over != 0 || c.Off > size || all > size-c.Off {
		return 0, fmt.Errorf("%d batches of %d bytes from %#x on in a buffer of %#x: %w", c.Depth, each, c.Off, size,
			syscall.ENOSPC)
	}
	return each, nil
}

// Records starts to fetch a file of records, batch after batch. The end of ctx, an error of Fetch, or Close ends it
// early; Next and Close return the first two. Errors of Records itself: EINVAL, ENOSPC.
func (o *Object) Records(ctx context.Context, c RecordsConfig) (*Records, error) {
	each, err := c.check(o.Size())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.name, err)
	}
	r := &Records{o: o, c: c, size: o.Size() - c.Skip, each: each, free: make(chan struct{}, c.Depth),
		ended: make(chan struct{}), now: time.Now}
	r.count = (r.size-1)/each + 1
	for range c.Depth {
		r.ready = append(r.ready, make(chan struct{}, 1))
		r.free <- struct{}{}
	}
	ctx, r.cancel = context.WithCancelCause(ctx)
	go func() {
		defer close(r.ended)
		r.err = o.Fetch(ctx, c.Buffer, r.feed(), func(p Piece) error {
			r.ready[(p.Mem-c.Off)/each] <- struct{}{} // never blocks: feed asks for a slot's next batch after Release
			return nil
		})
	}()
	return r, nil
}

func (r *Records) batch(i uint64) Batch {
	n := min(r.each, r.size-i*r.each)
	return Batch{Index: i, First: i * r.c.Batch, Records: n / r.c.RecordSize, Len: n,
		Off: r.c.Off + i%uint64(r.c.Depth)*r.each}
}

func (r *Records) feed() func(ctx context.Context) (Piece, bool) {
	i := uint64(0)
	return func(ctx context.Context) (Piece, bool) {
		if i == r.count {
			return Piece{}, false
		}
		select {
		case <-r.free:
		case <-ctx.Done():
			return Piece{}, false
		}
		b := r.batch(i)
		i++
		return Piece{Off: r.c.Skip + b.Index*r.each, Len: b.Len, Mem: b.Off}, true
	}
}

// Next returns the next batch when it is complete; the consumer owns its memory until Release frees it. Only one
// goroutine at a time may call Next, Release and Stats. Errors: io.EOF (no more batches), ENOBUFS (the consumer
// holds Depth batches), the cause of ctx's end, Fetch's, and another error after Close.
func (r *Records) Next(ctx context.Context) (b Batch, err error) {
	begin := r.now()
	if !r.asked.IsZero() {
		r.stats.Busy += begin.Sub(r.asked)
	}
	defer func() {
		r.asked = r.now()
		took := r.asked.Sub(begin)
		if r.stats.Waited += took; err != nil {
			return
		}
		if r.stats.Batches++; r.stats.Batches == 1 {
			r.stats.First = took
		}
		r.stats.Records += b.Records
		r.stats.Bytes += b.Len
	}()
	switch {
	case r.next == r.count:
		return b, io.EOF
	case r.held == uint64(r.c.Depth):
		return b, fmt.Errorf("next batch: %d are held, and there is place for no more: release one: %w", r.held,
			syscall.ENOBUFS)
	}
	ready := r.ready[r.next%uint64(r.c.Depth)]
	select {
	case <-ready:
	default:
		select {
		case <-ready:
		case <-r.ended:
			select {
			case <-ready:
			default:
				return b, r.err // not nil: a batch is missing
			}
		case <-ctx.Done():
			return b, context.Cause(ctx)
		}
	}
	b = r.batch(r.next)
	r.next++
	r.held++
	return b, nil
}

// Release frees the slot of the oldest batch that the consumer holds. EINVAL: it holds none.
func (r *Records) Release() error {
	if r.held == 0 {
		return fmt.Errorf("release: no batch is held: %w", syscall.EINVAL)
	}
	r.held--
	r.free <- struct{}{}
	return nil
}

// Stats returns a snapshot.
func (r *Records) Stats() RecordsStats { return r.stats }

var errLeft = errors.New("the records were closed")

// Close ends the fetch, and returns when the fetch no longer writes to memory. It returns the error that ended the
// fetch earlier, or nil. It is idempotent.
func (r *Records) Close() error {
	r.cancel(errLeft)
	<-r.ended
	if errors.Is(r.err, errLeft) {
		return nil
	}
	return r.err
}

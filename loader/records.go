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

// maxDepth bounds what a RecordsConfig costs.
const maxDepth = 1 << 16

// RecordsConfig says how a file of records is read.
type RecordsConfig struct {
	Buffer devmem.Buffer // in which Depth batches have room from Off on, one behind the other (ENOSPC)
	Off    uint64

	Skip       uint64 // bytes of the file before the first record
	RecordSize uint64 // in bytes; the file holds whole ones (EINVAL)
	Batch      uint64 // records in a batch; the last one has what is left
	Depth      int    // batches under way, there and not taken, or in use: 1 fetches one only when the last is released
}

// Records is a file of records of one size, which one consumer takes batch by batch, in the order
// of the file, while those that follow are fetched.
type Records struct {
	o      *Object
	c      RecordsConfig
	size   uint64 // of the file, but for Skip
	each   uint64 // bytes of a batch
	count  uint64 // batches
	cancel context.CancelCauseFunc
	free   chan struct{}   // one for each place that the next batch may have
	ready  []chan struct{} // by place: its batch is there
	ended  chan struct{}   // the fetch
	err    error           // of it, behind ended

	next, held uint64 // the consumer's

	now   func() time.Time
	asked time.Time // when Next returned; zero: not yet
	stats RecordsStats
}

// Batch is a batch that is in its place.
type Batch struct {
	Index   uint64 // from 0
	First   uint64 // its first record
	Records uint64
	Off     uint64 // where it is in RecordsConfig.Buffer
	Len     uint64 // in bytes
}

// RecordsStats says what the consumer got, and how its time went.
type RecordsStats struct {
	Batches, Records, Bytes uint64
	Waited                  time.Duration // in Next
	First                   time.Duration // of Waited: for the first batch
	Busy                    time.Duration // between calls of Next
}

// Share is the share of the consumer's time that it waited for data, from 0 to 1.
func (s *RecordsStats) Share() float64 {
	if s.Waited+s.Busy == 0 {
		return 0
	}
	return float64(s.Waited) / float64(s.Waited+s.Busy)
}

// check says what is wrong, and how long a batch is.
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

// Records begins to fetch a file of records, until ctx ends or Close. Errors: EINVAL, ENOSPC.
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
			r.ready[(p.Mem-c.Off)/each] <- struct{}{} // there is room: nobody has asked for its next batch
			return nil
		})
	}()
	return r, nil
}

// batch is the i-th one.
func (r *Records) batch(i uint64) Batch {
	n := min(r.each, r.size-i*r.each)
	return Batch{Index: i, First: i * r.c.Batch, Records: n / r.c.RecordSize, Len: n,
		Off: r.c.Off + i%uint64(r.c.Depth)*r.each}
}

// feed gives batches as places become free.
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

// Next gives the next batch when it is there; the consumer owns its memory until Release. One
// goroutine calls Next, Release and Stats. Errors: io.EOF (there are no more), ENOBUFS (the
// consumer holds all places), the context's cause, Fetch's.
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
				return b, r.err // not nil, as a batch has not come
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

// Release gives back the place of the oldest batch that Next gave and that was not released.
// EINVAL: there is none.
func (r *Records) Release() error {
	if r.held == 0 {
		return fmt.Errorf("release: no batch is held: %w", syscall.EINVAL)
	}
	r.held--
	r.free <- struct{}{}
	return nil
}

// Stats is a snapshot.
func (r *Records) Stats() RecordsStats { return r.stats }

// errLeft is the cause of a fetch's end that is nobody's fault.
var errLeft = errors.New("the records were closed")

// Close ends the fetch, and returns when it touches no memory any more; the Object can be used for
// another. Idempotent.
func (r *Records) Close() error {
	r.cancel(errLeft)
	<-r.ended
	if errors.Is(r.err, errLeft) {
		return nil
	}
	return r.err
}

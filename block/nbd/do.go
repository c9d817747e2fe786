package nbd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"vnic.dev/vnic/block"
)

const (
	free uint8 = iota
	queued
	sent // the request is sent, or being sent
	answered
)

// slot is the state of an operation; the zero slot is free.
type slot struct {
	op     block.Op
	flush  bool // NBD_CMD_FLUSH
	state  uint8
	handed bool // of a write or flush: the connection has taken request and payload
	cookie uint64
	began  time.Time
	err    error
	took   time.Duration
}

// A cookie has the index of the slot in its lower slotBits bits, and above them the number of the operation, from
// 1.
const slotBits = 16

// size counts the reads of n bytes that are sent, or being sent, and not answered.
type size struct {
	n     uint64
	reads int
}

// Do implements block.Device; it limits depth to Config.Depth. A depth below 1 is EINVAL, and a call while
// another Do runs EBUSY.
//
// If a write succeeded, Do has not failed, and the server has NBD_CMD_FLUSH, Do sends that request after all
// operations. If the server reports an error of the flush, Do returns the error, and the Device can still be used.
// If the server reports NBD_ESHUTDOWN, for an operation or the flush, Do starts no more operations, waits for those in
// progress, sends NBD_CMD_DISC without another flush, and returns ESHUTDOWN; then the Device cannot be used any more.
func (d *Device) Do(ctx context.Context, depth int, next func() (block.Op, bool), done func(block.Done)) error {
	if depth < 1 {
		return fmt.Errorf("nbd: a depth of %d: 1 at least: %w", depth, syscall.EINVAL)
	}
	if ctx.Err() != nil {
		return fmt.Errorf("nbd: %w", context.Cause(ctx))
	}
	work, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if err := d.begin(work, cancel); err != nil {
		return err
	}
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		d.fail(context.Cause(ctx))
		close(stopped)
	})
	r := run{d: d, depth: min(depth, d.c.Depth), next: next, done: done}
	defer func() {
		if !stop() {
			<-stopped
		}
		if r.under > 0 {
			d.fail(errors.New("a callback of Do did not return"))
		}
		cancel(nil)
		d.work.Wait()
		d.mu.Lock()
		d.busy, d.cancel = false, nil
		d.mu.Unlock()
	}()
	return r.do()
}

func (d *Device) begin(ctx context.Context, cancel context.CancelCauseFunc) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.err != nil:
		return d.err
	case d.busy:
		return fmt.Errorf("nbd: another Do is under way: %w", syscall.EBUSY)
	}
	d.busy, d.cancel = true, cancel
	start := func(l *link, work func(context.Context) error) {
		d.work.Go(func() {
			if err := work(ctx); err != nil {
				d.fail(fmt.Errorf("%s: %w", l.what, err))
			}
			wake(d.ended)
		})
	}
	start(d.reads, d.sendReads)
	start(d.reads, d.receiveReads)
	if d.writes != nil {
		start(d.writes, d.sendWrites)
		start(d.writes, d.receiveWrites)
	}
	return nil
}

// failed returns why the Device cannot be used any more, or nil.
func (d *Device) failed() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.err
}

type run struct {
	d     *Device
	depth int
	next  func() (block.Op, bool)
	done  func(block.Done)

	under   int
	last    bool
	wrote   bool
	leaving bool // the server is shutting down
	flush   error
}

func (r *run) do() error {
	d := r.d
	for {
		if err := r.fill(); err != nil {
			return r.abort(err)
		}
		if r.under == 0 && r.last {
			break
		}
		if err := r.wait(); err != nil {
			return r.abort(err)
		}
	}
	if r.wrote && d.flushes && !r.leaving {
		r.begin(block.Op{Write: true}, uint32(d.c.Depth))
		for r.under > 0 {
			if err := r.wait(); err != nil {
				return r.abort(err)
			}
		}
	}
	if r.leaving {
		err := fmt.Errorf("nbd: %s: the server is being shut down: %w", d.reads.what, syscall.ESHUTDOWN)
		d.mu.Lock()
		if d.err == nil {
			d.err = err
		}
		d.cancel(err)
		d.mu.Unlock()
		d.work.Wait()
		return errors.Join(r.flush, err, d.leave())
	}
	return r.flush
}

func (r *run) fill() error {
	d := r.d
	for r.under < r.depth && !r.last {
		if err := d.failed(); err != nil {
			return err
		}
		op, ok := r.next()
		if !ok {
			r.last = true
			break
		}
		if err := d.info.Check(op, d.c.Data.Size()); err != nil {
			r.done(block.Done{Op: op, Err: err})
			continue
		}
		n := len(d.free) - 1
		i := d.free[n]
		d.free = d.free[:n]
		r.begin(op, i)
	}
	return nil
}

func (r *run) begin(op block.Op, i uint32) {
	d := r.d
	l := d.reads
	if op.Write {
		l = d.writes
	}
	d.mu.Lock()
	d.count++
	d.slots[i] = slot{op: op, flush: i == uint32(d.c.Depth), state: queued, cookie: d.count<<slotBits | uint64(i)}
	l.queue = append(l.queue, i)
	d.mu.Unlock()
	r.under++
	wake(l.send)
}

func (r *run) wait() error {
	<-r.d.ended
	r.collect()
	return r.d.failed()
}

func (r *run) collect() {
	d := r.d
	d.mu.Lock()
	d.done, d.events = d.events, d.done[:0]
	d.mu.Unlock()
	for _, i := range d.done {
		d.mu.Lock()
		s := d.slots[i]
		d.slots[i] = slot{}
		d.mu.Unlock()
		r.under--
		r.leaving = r.leaving || errors.Is(s.err, syscall.ESHUTDOWN)
		r.last = r.last || r.leaving
		if s.flush {
			r.flush = s.err
			continue
		}
		d.free = append(d.free, i)
		switch {
		case s.err != nil:
		case s.op.Write:
			r.wrote = true
			d.written.Add(s.op.Len)
		default:
			d.read.Add(s.op.Len)
		}
		r.done(block.Done{Op: s.op, Took: s.took, Err: s.err})
	}
}

// abort makes the Device fail, and calls done for all operations: completed ones with their result, others with the
// error that abort returns.
func (r *run) abort(err error) error {
	d := r.d
	d.fail(err) // returns when the connections are closed
	d.work.Wait()
	r.collect()
	if d.tx != nil && slices.ContainsFunc(d.slots, func(s slot) bool { return s.op.Write && s.state >= sent }) {
		// When the binding is done, memory that was being sent is no longer in use.
		if e := d.tx.Close(); e != nil {
			err = errors.Join(err, e)
		} else {
			<-d.tx.Done()
		}
	}
	for i := range d.slots {
		s := d.slots[i]
		d.slots[i] = slot{}
		if s.state == free || s.flush {
			continue
		}
		took := time.Duration(0)
		if s.state != queued {
			took = time.Since(s.began)
		}
		r.done(block.Done{Op: s.op, Took: took, Err: err})
	}
	r.under = 0
	return err
}

// take removes the next request from a link's queue, and encodes it in b; ok is false if the queue is empty. The
// caller holds mu.
func (d *Device) take(l *link, b *[requestLen]byte) (i uint32, ok bool) {
	if len(l.queue) == 0 {
		return 0, false
	}
	i = l.queue[0]
	l.queue = l.queue[:copy(l.queue, l.queue[1:])]
	s := &d.slots[i]
	s.state, s.began = sent, time.Now()
	l.out++
	r := request{Type: cmdRead, Cookie: s.cookie, Off: s.op.Off, Len: uint32(s.op.Len)}
	switch {
	case s.flush:
		r = request{Type: cmdFlush, Cookie: s.cookie}
	case s.op.Write:
		r.Type = cmdWrite
	default:
		d.tally(s.op.Len, 1)
	}
	r.encode(b)
	return i, true
}

// tally adds 1 or -1, the parameter more, to the count of reads of n bytes in sizes. The caller holds mu.
func (d *Device) tally(n uint64, more int) {
	i := slices.IndexFunc(d.sizes, func(s size) bool { return s.n == n })
	if i < 0 {
		i = len(d.sizes)
		d.sizes = append(d.sizes, size{n: n})
	}
	if d.sizes[i].reads += more; d.sizes[i].reads == 0 {
		last := len(d.sizes) - 1
		d.sizes[i] = d.sizes[last]
		d.sizes = d.sizes[:last]
	}
}

func (d *Device) answer(l *link, r *reply) (i uint32, op block.Op, err error) {
	if err := r.check(); err != nil {
		return 0, op, err
	}
	d.messages.Add(1)
	d.mu.Lock()
	defer d.mu.Unlock()
	fail := func(why string) (uint32, block.Op, error) {
		return 0, op, fmt.Errorf("a reply has cookie %#x, %s: %w", r.Cookie, why, block.ErrProtocol)
	}
	index, number := r.Cookie&(1<<slotBits-1), r.Cookie>>slotBits
	if index >= uint64(len(d.slots)) || number == 0 || number > d.count {
		return fail("which no operation ever had")
	}
	s := &d.slots[index]
	switch {
	case s.cookie != r.Cookie || s.state == answered:
		return fail("whose operation was answered before, or never was")
	case s.op.Write != (l == d.writes):
		return fail(fmt.Sprintf("which is that of a %v, on the other connection", s.op))
	case s.state == queued:
		return fail(fmt.Sprintf("which is that of a %v whose request was not sent yet", s.op))
	}
	s.state = answered
	l.out--
	if !s.op.Write {
		d.tally(s.op.Len, -1)
	} else if s.handed {
		d.settle(uint32(index))
	}
	if r.Error != 0 {
		text, errno := status(r.Error)
		if s.err = &(block.OpError{Op: s.op, Status: text, Errno: errno}); s.flush {
			s.err = fmt.Errorf("nbd: the flush after writes: %s: %w", text, errno)
		}
	}
	return uint32(index), s.op, nil
}

// finish passes the slots in list, whose operations are complete, to Do. The caller holds mu.
func (d *Device) finish(list []uint32) {
	now := time.Now()
	for _, i := range list {
		d.slots[i].took = now.Sub(d.slots[i].began)
	}
	d.events = append(d.events, list...)
	wake(d.ended)
}

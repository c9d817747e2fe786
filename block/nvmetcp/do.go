package nvmetcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"vnic.dev/vnic/block"
)

// mostTaken is how many bytes, taken or skipped, make take flush the stream; without Copy, a quarter of Config.Pool
// if that is less.
const mostTaken = 1 << 20

type run struct {
	d     *Device
	q     *queue
	depth int
	next  func() (block.Op, bool)
	done  func(block.Done)

	jobs    chan job
	sent    chan struct{} // closed when the sender has ended
	sendErr error         // valid after sent is closed

	over  bool
	open  []*slot // commands in progress
	unans int     // slots in open that are not answered
	reads int     // unanswered reads in open
	kinds int     // kindsUnderWay at the last header

	// The C2HData whose data is being received; into is its command's slot, or nil: there is none.
	into      *slot
	pad, left uint64 // bytes before its data, and of its data, that are not taken from the stream
	final     bool   // no CapsuleResp follows its data

	taken  uint64 // bytes taken or skipped since the last gather
	placed bool   // some of the taken bytes are data
}

// Do implements block.Device. It limits depth to Info.MaxDepth. A depth below 1 is EINVAL. Do waits for
// another Do or Close to end, so next and done must not call Do. After an error, other than for
// depth or for a ctx that has ended before, the Device cannot be used any more.
func (d *Device) Do(ctx context.Context, depth int, next func() (block.Op, bool), done func(block.Done)) (err error) {
	if depth < 1 {
		return d.wrap(fmt.Errorf("depth %d: %w", depth, syscall.EINVAL))
	}
	d.doing.Lock()
	defer d.doing.Unlock()
	if ctx.Err() != nil {
		return d.wrap(context.Cause(ctx))
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	d.mu.Lock()
	d.cancel, err = cancel, d.err
	d.mu.Unlock()
	if err != nil {
		return err
	}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		_ = d.fail(d.wrap(context.Cause(ctx)))
	})
	r := &run{d: d, q: &d.q, depth: min(depth, d.ctrl.info.MaxDepth), next: next, done: done, sent: make(chan struct{})}
	r.jobs = make(chan job, maxJobs*r.depth)
	err = r.do(ctx)
	if !stop() {
		<-ended
		if err == nil {
			err = d.failed()
		}
	}
	d.mu.Lock()
	d.cancel = nil
	d.mu.Unlock()
	return err
}

func (r *run) do(ctx context.Context) error {
	go func() {
		defer close(r.sent)
		r.sendErr = r.q.sender.run(ctx, r.jobs)
	}()
	err := r.loop(ctx)
	if err != nil {
		err = r.d.fail(r.d.wrap(r.cause(err))) // fail also ends a send that waits
	}
	close(r.jobs)
	<-r.sent
	if err == nil {
		return nil
	}
	for _, s := range r.open {
		if s.op.Write && r.d.tx != nil { // the write's memory may be in use until the binding is done
			if e := errors.Join(r.d.tx.Close(), r.d.settled(r.d.tx)); e != nil {
				err = errors.Join(err, e)
			}
			break
		}
	}
	for _, s := range r.open {
		r.q.put(s)
		r.done(block.Done{Op: s.op, Took: time.Since(s.began), Err: err})
	}
	return err
}

// cause wraps err, or the sender's error if that ended the loop, with the number of commands in progress. An end of
// the stream becomes io.ErrUnexpectedEOF.
func (r *run) cause(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, errSender) {
		<-r.sent
		err = fmt.Errorf("send: %w", r.sendErr)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = fmt.Errorf("the target closed the connection: %w", io.ErrUnexpectedEOF)
	}
	return fmt.Errorf("%d commands under way: %w", len(r.open), err)
}

var errSender = errors.New("cannot send")

func (r *run) loop(ctx context.Context) error {
	for {
		if err := r.begin(); err != nil {
			return err
		}
		if len(r.open) == 0 {
			return nil
		}
		var err error
		if r.unans > 0 {
			err = r.receive(ctx)
		} else {
			err = r.settle(ctx)
		}
		// After an error of receive or settle, too, finish reports operations that are complete.
		if e := r.finish(ctx); err == nil {
			err = e
		}
		if err != nil {
			return err
		}
	}
}

func (r *run) begin() error {
	for !r.over && len(r.open) < r.depth {
		o, ok := r.next()
		if !ok {
			r.over = true
			break
		}
		if err := r.q.info.Check(o, r.q.data.Size()); err != nil {
			r.done(block.Done{Op: o, Err: err})
			continue
		}
		s := r.q.take(o)
		r.open = append(r.open, s)
		r.unans++
		if !o.Write {
			r.reads++
		}
		if err := r.give(r.q.job(s)); err != nil {
			return err
		}
	}
	return nil
}

// give passes a job to the sender, or may return errSender if the sender has ended. give does not block: r.jobs
// has room for maxJobs jobs of each command.
func (r *run) give(j job) error {
	j.s.jobs.Add(1)
	select {
	case r.jobs <- j:
		return nil
	case <-r.sent:
		return errSender
	}
}

func (r *run) receive(ctx context.Context) error {
	for first := true; ; first = false {
		need := headLen
		if r.into != nil {
			need = 1
		}
		if s := r.q.stream; s.Len() < uint64(need) {
			if !first {
				return nil
			}
			if err := s.Fill(ctx, need); err != nil {
				return err
			}
		}
		var err error
		if r.into != nil {
			err = r.take(ctx)
		} else {
			err = r.pdu(ctx)
		}
		if err != nil {
			return err
		}
	}
}

func (r *run) pdu(ctx context.Context) error {
	var b [headLen]byte
	if kinds := r.kindsUnderWay(); kinds != r.kinds || kinds == bothKinds {
		r.q.heads.forget()
		r.kinds = kinds
	}
	if err := r.q.heads.next(ctx, &b); err != nil {
		return err
	}
	var h common
	h.decode((*[commonLen]byte)(b[:]))
	if err := h.check(); err != nil {
		return err
	}
	r.q.heads.learn(&h)
	if h.Type == typeC2HTermReq {
		return r.terminated(ctx, &h, &b)
	}
	if err := r.skip(headLen); err != nil {
		return err
	}
	switch h.Type {
	case typeC2HData:
		return r.c2hData(&b)
	case typeR2T:
		return r.r2t(&b)
	}
	return r.capsule(&b)
}

// Kinds of unanswered commands, as bits. With both, headers have a fixed distance only by chance.
const (
	someReads = 1 << iota
	someWrites
	bothKinds = someReads | someWrites
)

func (r *run) kindsUnderWay() (kinds int) {
	if r.reads > 0 {
		kinds |= someReads
	}
	if r.reads < r.unans {
		kinds |= someWrites
	}
	return kinds
}

func (r *run) skip(n uint64) error {
	r.q.heads.took(n)
	r.taken += n
	return r.q.stream.Skip(n)
}

func (r *run) c2hData(b *[headLen]byte) error {
	var p transfer
	p.decode(b)
	s, err := r.q.find(p.Type, p.CID)
	if err != nil {
		return err
	}
	rest := s.op.Len - s.got
	last, success := p.Flags&flagLast != 0, p.Flags&flagSuccess != 0
	switch {
	case s.op.Write:
		return violation("C2HData for %v", s)
	case p.Len != p.PLen-uint32(p.PDO): // common.check has refused a PLEN that is not above the PDO
		return violation("C2HData for %v: DATAL %d in a PDU that holds %d", s, p.Len, p.PLen-uint32(p.PDO))
	case uint64(p.Off) != s.got:
		return violation("C2HData for %v: DATAO %d, not %d", s, p.Off, s.got)
	case uint64(p.Len) > rest:
		return violation("C2HData for %v: DATAL %d, beyond the %d bytes that are left", s, p.Len, rest)
	case last != (uint64(p.Len) == rest):
		return violation("C2HData for %v: flags %#x (LAST %v) with %d bytes of the %d that are left", s, p.Flags, last,
			p.Len, rest)
	case success && !last:
		return violation("C2HData for %v: flags %#x: SUCCESS without LAST", s, p.Flags)
	}
	r.into, r.pad, r.left, r.final = s, uint64(p.PDO)-headLen, uint64(p.Len), success
	return nil
}

// take takes arrived bytes that follow the header of a C2HData: it skips padding, or takes data for the read's memory.
func (r *run) take(ctx context.Context) error {
	st := r.q.stream
	if r.pad > 0 {
		n := min(r.pad, st.Len())
		r.pad -= n
		return r.skip(n)
	}
	s, n := r.into, min(r.left, st.Len())
	if err := st.Take(ctx, r.q.data, s.op.Mem+s.got, n); err != nil {
		return err
	}
	r.q.heads.took(n)
	s.got, r.left, r.taken, r.placed = s.got+n, r.left-n, r.taken+n, true
	if r.left == 0 {
		r.into = nil
		if r.final {
			r.answer(s, nil)
		}
	}
	if r.taken < mostTaken && (r.d.c.Copy || r.taken < r.d.c.Pool.Size()/4) {
		return nil
	}
	return r.gather(ctx)
}

// gather makes the stream move the taken data to its memory.
func (r *run) gather(ctx context.Context) error {
	r.taken, r.placed = 0, false
	return r.q.stream.Flush(ctx)
}

func (r *run) answer(s *slot, err error) {
	s.answered, s.err = true, err
	r.unans--
	if !s.op.Write {
		r.reads--
	}
}

func (r *run) r2t(b *[headLen]byte) error {
	var p transfer
	p.decode(b)
	s, err := r.q.find(p.Type, p.CID)
	if err != nil {
		return err
	}
	switch {
	case !s.op.Write:
		return violation("R2T for %v", s)
	case s.got == s.op.Len:
		return violation("R2T for %v, all of whose data was sent or asked for", s)
	case uint64(p.Off) != s.got:
		return violation("R2T for %v: R2TO %d, not %d", s, p.Off, s.got)
	case p.Len == 0 || uint64(p.Len) > s.op.Len-s.got:
		return violation("R2T for %v: R2TL %d, not 1 to the %d bytes that are left", s, p.Len, s.op.Len-s.got)
	case s.jobs.Load() >= maxJobs-1: // one of the maxJobs places is for the command itself, sent again
		return violation("R2T for %v: more than one at a time (MAXR2T is 0)", s)
	}
	j := r.q.job(s)
	j.data, j.tag, j.off, j.len, j.mem = true, p.Tag, s.got, uint64(p.Len), s.op.Mem+s.got
	s.got += uint64(p.Len)
	return r.give(j)
}

// capsule processes a CapsuleResp: it sends a refused command again if it may be retried, or records the answer. It
// returns an error if the CapsuleResp breaks the protocol.
func (r *run) capsule(b *[headLen]byte) error {
	var p response
	p.decode(b)
	s, err := r.q.find(p.Type, p.CID)
	switch {
	case err != nil:
		return err
	case p.Status.mayRetry() && s.retries < maxRetries: // give queues the command behind the jobs that send its data
		if s.jobs.Load() >= maxJobs {
			return violation("CapsuleResp for %v: it was not sent yet", s)
		}
		s.retries++
		r.q.renew(s)
		return r.give(r.q.job(s))
	case !p.Status.ok():
		r.answer(s, r.q.opError(s, p.Status))
		return nil
	case s.got != s.op.Len:
		return violation("CapsuleResp for %v: success, with %d bytes of its data", s, s.got)
	}
	r.answer(s, nil)
	return nil
}

func (r *run) terminated(ctx context.Context, h *common, b *[headLen]byte) error {
	var p termReq
	p.decode(b)
	var buf [maxTermLen]byte
	pdu := buf[:h.PLen]
	if r.q.stream.Fill(ctx, len(pdu)) != nil || r.q.stream.Look(ctx, pdu, 0) != nil {
		pdu = pdu[:headLen]
	}
	return fmt.Errorf("the target ends the connection (C2HTermReq): %s: %w", p.say(pdu[headLen:]), syscall.EPROTO)
}

// finish calls done for answered commands whose memory is not in use.
func (r *run) finish(ctx context.Context) (err error) {
	if r.unans == len(r.open) {
		return nil
	}
	if r.placed {
		if err := r.gather(ctx); err != nil {
			return err
		}
	}
	asked := false
	kept := r.open[:0]
	for _, s := range r.open {
		if s.answered && s.jobs.Load() == 0 {
			need := s.need.Load()
			if s.op.Write && need > r.q.completed && !asked {
				err = completed(r.q.conn, &r.q.completed, need, false)
				asked = need > r.q.completed
			}
			if !s.op.Write || need <= r.q.completed {
				r.end(s)
				continue
			}
		}
		kept = append(kept, s)
	}
	r.open = kept
	return err
}

func (r *run) end(s *slot) {
	if s.err == nil && s.op.Write {
		r.q.written += s.op.Len
	} else if s.err == nil {
		r.q.read += s.op.Len
	}
	r.q.put(s)
	r.done(block.Done{Op: s.op, Took: time.Since(s.began), Err: s.err})
}

// settle waits until finish may have something to do, or returns an error if the sender or ctx has ended. The caller
// makes sure that all commands in open are answered, and that there is one.
func (r *run) settle(ctx context.Context) error {
	for _, s := range r.open {
		if s.op.Write && s.jobs.Load() == 0 {
			return completed(r.q.conn, &r.q.completed, s.need.Load(), true)
		}
	}
	select {
	case <-r.q.sender.wake:
		return nil
	case <-r.sent:
		return errSender
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

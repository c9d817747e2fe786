package loader

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"syscall"

	"vnic.dev/vnic/devmem"
)

// Piece is the bytes [Off, Off+Len) of a file. Fetch writes them to its parameter dst from offset Mem on.
type Piece struct{ Off, Len, Mem uint64 }

// Pieces returns a function for Fetch's parameter next that returns the pieces of a list, one after the other.
func Pieces(list ...Piece) func(context.Context) (Piece, bool) {
	return func(context.Context) (p Piece, ok bool) {
		if len(list) == 0 {
			return p, false
		}
		p, list = list[0], list[1:]
		return p, true
	}
}

// span is a part of a piece, of at most Config.RangeSize bytes. off, n and mem describe its bytes that have not been
// received: a request asks for these.
type span struct {
	off, n, mem uint64
	all         uint64 // n when the span was made
	piece       *pending
}

type pending struct {
	Piece
	left uint64 // bytes of spans that Fetch has not got from fetch.landed; only Fetch changes it
}

type fetch struct {
	o      *Object
	dst    devmem.Buffer
	spans  chan span
	landed chan span
	idle   atomic.Int64
}

// Fetch brings pieces of the file to a buffer in device memory (without Config.Copy, of the pool's GPU), on up to
// Config.Connections connections. It calls next from one goroutine for one piece after the other; next may block until
// its context ends. At most 2 x Connections x Pipeline + 1 pieces from next wait for bytes of the server at a time.
// Fetch calls done once for each complete piece, in any order, from the goroutine that called Fetch, until the first
// error. It returns when it no longer writes to dst: nil if next has no more pieces and all are complete, or else the
// first error, which may be done's or the cause of the context's end.
//
// Errors: EINVAL (a piece is empty or beyond the file, or the buffer overlaps the pool), EFAULT (a piece is
// beyond the buffer), EXDEV (the buffer is on another GPU than the pool), EBUSY (another Fetch runs), net.ErrClosed
// (the Object is closed), ErrChanged, ErrProtocol, *StatusError, EOPNOTSUPP and ENODATA (as for Open), the error of the
// connection that made no progress for Config.Retry, and the errors of Memory and Device.AddFlow. After an error the
// Object can still be used, unless it is closed; the memory of pieces without a call of done has any content.
func (o *Object) Fetch(ctx context.Context, dst devmem.Buffer, next func(ctx context.Context) (Piece, bool),
	done func(Piece) error) error {
	ctx, cancel, end, err := o.begin(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", o.name, err)
	}
	defer end()
	if err := o.checkBuffer(dst); err != nil {
		return fmt.Errorf("%s: %w", o.name, err)
	}
	most := o.c.Connections * o.c.Pipeline // most spans in the workers' lists; f.spans holds as many more
	f := &fetch{o: o, dst: dst, spans: make(chan span, most), landed: make(chan span, most)}
	f.idle.Store(int64(o.c.Connections))
	var work sync.WaitGroup
	work.Go(func() {
		defer close(f.spans)
		if err := f.feed(ctx, next); err != nil {
			cancel(err)
		}
	})
	for i := range o.links {
		work.Go(func() {
			w := worker{f: f, l: &o.links[i]}
			if err := w.run(ctx); err != nil {
				cancel(err)
			}
		})
	}
	go func() {
		work.Wait()
		close(f.landed)
	}()
	for s := range f.landed {
		p := s.piece
		if p.left -= s.all; p.left > 0 || ctx.Err() != nil {
			continue
		}
		if err := done(p.Piece); err != nil {
			cancel(err)
		}
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", o.name, context.Cause(ctx))
	}
	return nil
}

func (o *Object) checkBuffer(dst devmem.Buffer) error {
	if o.c.Copy {
		return nil
	}
	pool := o.c.Pool
	if dst.GPU() != pool.GPU() {
		return fmt.Errorf("a buffer of gpu %d and a pool of gpu %d: %w", dst.GPU(), pool.GPU(), syscall.EXDEV)
	}
	if a, b := dst.Offset(), pool.Offset(); a < b+pool.Size() && b < a+dst.Size() {
		return fmt.Errorf("the buffer [%#x, +%#x) overlaps the pool [%#x, +%#x): %w", a, dst.Size(), b, pool.Size(),
			syscall.EINVAL)
	}
	return nil
}

// feed checks the pieces that next returns, and sends them to f.spans, cut into spans. It returns an error for the
// first bad piece, and nil when next has no more pieces or ctx has ended.
func (f *fetch) feed(ctx context.Context, next func(ctx context.Context) (Piece, bool)) error {
	for ctx.Err() == nil {
		p, ok := next(ctx)
		if !ok {
			return nil
		}
		if size := f.o.Size(); p.Len == 0 || p.Off > size || p.Len > size-p.Off {
			return fmt.Errorf("bytes [%d, +%d) of %d: %w", p.Off, p.Len, size, syscall.EINVAL)
		}
		if size := f.dst.Size(); p.Mem > size || p.Len > size-p.Mem {
			return fmt.Errorf("memory [%#x, +%#x) of a buffer of %#x bytes: %w", p.Mem, p.Len, size, syscall.EFAULT)
		}
		piece := &pending{Piece: p, left: p.Len}
		for pos := uint64(0); pos < p.Len; {
			n := min(p.Len-pos, f.o.c.RangeSize)
			select {
			case f.spans <- span{off: p.Off + pos, n: n, mem: p.Mem + pos, all: n, piece: piece}:
			case <-ctx.Done():
				return nil
			}
			pos += n
		}
	}
	return nil
}

type worker struct {
	f *fetch
	l **link // the worker's element of Object.links

	list   []span // to be received, in this order; the first may have been received in part
	landed []span // received; after the next flush dst has their bytes
	busy   bool   // fetch.idle does not count this worker

	tried retries
}

// run fetches spans until there are no more, or returns the error that ends Fetch.
func (w *worker) run(ctx context.Context) (err error) {
	if l := *w.l; l != nil { // an earlier Fetch has left it
		l.hold(ctx)
	}
	defer func() {
		if l := *w.l; l != nil && (!l.release() || err != nil) {
			_ = l.close()
			*w.l = nil
		}
	}()
	for {
		more, err := w.gain(ctx)
		if err == nil && !more {
			return nil
		}
		if err == nil {
			err = w.serve(ctx)
		}
		if err == nil {
			continue
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if away := (*broken)(nil); !errors.As(err, &away) {
			return w.name(err)
		}
		if err := w.recover(ctx, err); err != nil {
			return w.name(err)
		}
	}
}

func (w *worker) name(err error) error {
	if len(w.list) == 0 {
		return err
	}
	return fmt.Errorf("bytes %d-%d: %w", w.list[0].off, w.list[0].off+w.list[0].n-1, err)
}

// gain makes sure that list has a span. If it has to wait for one, it calls settle first. Without an error, more is
// false if there are no more spans.
func (w *worker) gain(ctx context.Context) (more bool, err error) {
	if len(w.list) > 0 {
		return true, nil
	}
	if w.busy {
		w.busy = false
		w.f.idle.Add(1)
	}
	var s span
	var ok bool
	select {
	case s, ok = <-w.f.spans:
	default:
		// Settle before waiting: next may block until done has been called for these spans.
		if err := w.settle(ctx); err != nil {
			return false, err
		}
		select {
		case s, ok = <-w.f.spans:
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
	if !ok {
		return false, w.settle(ctx)
	}
	w.busy = true
	w.f.idle.Add(-1)
	w.list = append(w.list, s)
	return true, nil
}

// settle flushes the spans of landed to dst, and reports them to Fetch.
func (w *worker) settle(ctx context.Context) error {
	if len(w.landed) == 0 {
		return nil
	}
	if err := (*w.l).flush(ctx); err != nil {
		return err
	}
	w.report()
	return nil
}

func (w *worker) report() {
	for _, s := range w.landed {
		w.f.landed <- s
	}
	w.landed = w.landed[:0]
}

// serve makes a connection if there is none, sends the requests that may be sent, and receives one response.
func (w *worker) serve(ctx context.Context) error {
	l := *w.l
	if l == nil {
		c, err := w.f.o.connect(ctx)
		if err != nil {
			return err
		}
		c.hold(ctx)
		*w.l, l = c, c
	}
	if err := w.ask(l); err != nil {
		return err
	}
	if l.s.Len() == 0 { // the response may come late
		if err := w.settle(ctx); err != nil {
			return err
		}
	}
	resp, err := l.response(ctx) //nolint:bodyclose // resp has no Body: the body of the response lies in device memory
	if err != nil {
		return err
	}
	s := &w.list[0]
	if _, err := w.f.o.answer(resp, l.c.RemoteAddr(), l.conditional, s.off, s.n); err != nil {
		return err
	}
	if err := w.body(ctx, l, s); err != nil {
		return err
	}
	w.landed = append(w.landed, *s)
	w.list = append(w.list[:0], w.list[1:]...)
	l.sent--
	l.served++
	l.begun = l.s.Len() > 0
	if !resp.Close {
		l.persists = true
		return nil
	}
	if err := w.settle(ctx); err != nil {
		return err
	}
	_ = l.close() // the server answers no further request on it
	*w.l = nil
	return nil
}

// ask adds spans to list, up to the number of requests that may be in progress, and requests the spans that were not
// requested on this connection.
func (w *worker) ask(l *link) error {
	most := 1
	if l.persists {
		most = w.f.o.c.Pipeline
	}
gain:
	for len(w.list) < most && w.f.idle.Load() == 0 { // leaves spans to idle workers
		select {
		case s, ok := <-w.f.spans:
			if !ok {
				break gain
			}
			w.list = append(w.list, s)
		default:
			break gain
		}
	}
	first, last := l.sent, min(most, len(w.list))
	if first >= last {
		return nil
	}
	l.out = l.out[:0]
	for _, s := range w.list[first:last] {
		l.out = l.request.ranged(l.out, s.off, s.n)
	}
	return l.ask(last - first)
}

func (w *worker) body(ctx context.Context, l *link, s *span) error {
	for s.n > 0 {
		if l.s.Len() == 0 {
			if err := w.settle(ctx); err != nil {
				return err
			}
			if err := l.fill(ctx, 1); err != nil {
				return err
			}
		}
		k := min(s.n, l.s.Len())
		if err := l.take(ctx, w.f.dst, s.mem, k); err != nil {
			return err
		}
		s.off, s.mem, s.n = s.off+k, s.mem+k, s.n-k
		w.tried = retries{}
	}
	return nil
}

// recover flushes and closes the connection that failed with why, if one was made. It returns nil when another attempt
// is due: at once if the connection ended between two responses, or broke after it had brought bytes of a body; else
// after a pause. It returns an error if the worker must end.
func (w *worker) recover(ctx context.Context, why error) error {
	if l := *w.l; l != nil {
		var away *broken
		if err := l.flush(ctx); err != nil && !errors.As(err, &away) {
			return err
		}
		w.report()
		// kept: the server closed the connection between two responses.
		kept := l.served > 0 && !l.begun && !timeout(why)
		_ = l.close()
		*w.l = nil
		if kept {
			return nil
		}
		w.f.o.stats.resumed.Add(1)
		if refused := (*StatusError)(nil); l.took && !errors.As(why, &refused) {
			return nil
		}
	}
	if errors.Is(why, io.EOF) {
		why = io.ErrUnexpectedEOF
	}
	return w.tried.pause(ctx, &w.f.o.c, why)
}

func timeout(err error) bool {
	t := interface{ Timeout() bool }(nil)
	return errors.As(err, &t) && t.Timeout()
}

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

// Piece is [Off, Off+Len) of a file, and where it goes: from Mem on in the buffer of Fetch.
type Piece struct{ Off, Len, Mem uint64 }

// Pieces gives pieces of a list, for Fetch.
func Pieces(list ...Piece) func(context.Context) (Piece, bool) {
	return func(context.Context) (p Piece, ok bool) {
		if len(list) == 0 {
			return p, false
		}
		p, list = list[0], list[1:]
		return p, true
	}
}

// span is a part of a piece that one request asks for, or what is left of it.
type span struct {
	off, n, mem uint64
	all         uint64 // n at first
	of          *pending
}

// pending is a piece that is on its way.
type pending struct {
	Piece
	left uint64 // bytes that are not in their place; Fetch's
}

// fetch is what is under way.
type fetch struct {
	o      *Object
	dst    devmem.Buffer
	spans  chan span
	landed chan span
	idle   atomic.Int64 // workers that have nothing to bring
}

// Fetch brings pieces of the file to a buffer in device memory, of the pool's GPU, on all
// connections; a piece that is longer than a range is asked for in parts. next gives one piece
// after the other, from one goroutine; it may wait, as for a place to be free, until its context
// ends, and is asked for no more pieces than 2 x Connections x Pipeline + 1 beyond those that are
// in their places. done is called once for each piece that is in its place, from the goroutine that
// called Fetch, in any order; what it waits for, all connections wait for. Fetch returns when no
// memory of dst is touched any more: nil when next has given no more and all pieces are there, or
// the first error, among them that of done.
//
// Errors: EINVAL (a piece is empty or beyond the file, or the buffer overlaps the pool), EFAULT (a
// piece is beyond the buffer), EXDEV, EBUSY, ErrChanged, ErrProtocol, *StatusError, EOPNOTSUPP (as
// for Open), that of the connection which made no progress for Config.Retry, the cause of the
// context's end, net.ErrClosed, Memory's. After one the Object can still be used; pieces that done
// was not called for have any bytes.
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
	most := o.c.Connections * o.c.Pipeline // requests under way; as many wait, lest a connection does
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
		p := s.of
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

// feed cuts pieces.
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
		of := &pending{Piece: p, left: p.Len}
		for at := uint64(0); at < p.Len; {
			n := min(p.Len-at, f.o.c.RangeSize)
			select {
			case f.spans <- span{off: p.Off + at, n: n, mem: p.Mem + at, all: n, of: of}:
			case <-ctx.Done():
				return nil
			}
			at += n
		}
	}
	return nil
}

// worker has a connection, or makes one, and asks for spans on it.
type worker struct {
	f *fetch
	l **link // the Object's

	list   []span // that this one is to bring; the first may have come in part
	landed []span // in their places at the next flush
	busy   bool   // list is not empty: Fetch.idle does not count this one

	tried retries
}

// run brings spans until there are no more. The connection is kept where all has gone well.
func (w *worker) run(ctx context.Context) (err error) {
	if l := *w.l; l != nil { // of the Fetch before
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

// name says which bytes an error is about.
func (w *worker) name(err error) error {
	if len(w.list) == 0 {
		return err
	}
	return fmt.Errorf("bytes %d-%d: %w", w.list[0].off, w.list[0].off+w.list[0].n-1, err)
}

// gain gets a span where there is none to bring, and waits for one; false: there are no more.
func (w *worker) gain(ctx context.Context) (more bool, err error) {
	if len(w.list) > 0 {
		return true, nil
	}
	if w.busy {
		w.busy = false
		w.f.idle.Add(1)
	}
	select {
	case s, ok := <-w.f.spans:
		return w.got(ctx, s, ok)
	default:
	}
	// What has landed is told of before there is a wait: a new span may not come until it is.
	if err := w.settle(ctx); err != nil {
		return false, err
	}
	select {
	case s, ok := <-w.f.spans:
		return w.got(ctx, s, ok)
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
}

// got takes a span; not ok: there are no more.
func (w *worker) got(ctx context.Context, s span, ok bool) (more bool, err error) {
	if !ok {
		return false, w.settle(ctx)
	}
	w.busy = true
	w.f.idle.Add(-1)
	w.list = append(w.list, s)
	return true, nil
}

// settle brings what was taken to its place, and tells of it.
func (w *worker) settle(ctx context.Context) error {
	if len(w.landed) == 0 {
		return nil
	}
	if err := (*w.l).flush(ctx); err != nil {
		return err
	}
	w.tell()
	return nil
}

// tell tells of what is in its place. Fetch takes it, whatever happens.
func (w *worker) tell() {
	for _, s := range w.landed {
		w.f.landed <- s
	}
	w.landed = w.landed[:0]
}

// serve asks for what may be asked for, and takes a response.
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
	if l.s.Len() == 0 { // there may be long to wait
		if err := w.settle(ctx); err != nil {
			return err
		}
	}
	resp, err := l.response(ctx) //nolint:bodyclose // it has none: what follows lies in device memory
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
	_ = l.close() // the server does; what else was asked for it forgets
	*w.l = nil
	return nil
}

// ask gets more spans, as many as may be under way, and sends what was not asked for.
func (w *worker) ask(l *link) error {
	most := 1
	if l.persists {
		most = w.f.o.c.Pipeline
	}
gain:
	for len(w.list) < most && w.f.idle.Load() == 0 { // not what another connection could bring at once
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

// body takes the bytes of a span as they come.
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

// recover prepares for another connection, or says why there is to be none. What was taken of the
// one that broke is brought to its place.
func (w *worker) recover(ctx context.Context, why error) error {
	if l := *w.l; l != nil {
		var away *broken
		if err := l.flush(ctx); err != nil && !errors.As(err, &away) {
			return err
		}
		w.tell()
		// One that the server keeps no longer, or that went with the server, has brought all that
		// it began.
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

package loader

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/devmembase"
)

// broken is an error after which a new request, for Fetch on another connection, may succeed.
type broken struct{ err error }

func (b *broken) Error() string { return b.err.Error() }
func (b *broken) Unwrap() error { return b.err }

// memory records the first error of a Memory's Look, Put or Gather, so that a worker does not try another connection
// after it.
type memory struct {
	devmem.Memory
	failed atomic.Pointer[error]
}

func (m *memory) note(err error) error {
	if err != nil {
		m.failed.CompareAndSwap(nil, &err)
	}
	return err
}

// Look implements devmem.Memory.
func (m *memory) Look(ctx context.Context, dst []byte, b devmem.Buffer, ranges ...devmem.Range) error {
	return m.note(m.Memory.Look(ctx, dst, b, ranges...))
}

// Put implements devmem.Memory.
func (m *memory) Put(ctx context.Context, b devmem.Buffer, off uint64, src []byte) error {
	return m.note(m.Memory.Put(ctx, b, off, src))
}

// Gather implements devmem.Memory.
func (m *memory) Gather(ctx context.Context, dst, src devmem.Buffer, moves []devmem.Move) error {
	return m.note(m.Memory.Gather(ctx, dst, src, moves))
}

// link is a connection to the server for requests of ranges. Only one Fetch at a time uses it.
type link struct {
	o    *Object
	c    devmem.Conn
	s    *devmem.Stream
	m    *memory
	flow devmem.FlowID // 0: none (Config.Copy), so heads are in host memory
	stop func() bool   // undoes hold; nil: not held

	parser headParser
	head   []byte
	out    []byte
	host   uint64 // what this link has added to Stats.HostBytes

	sent     int  // requests whose response is not complete
	served   int  // complete responses
	begun    bool // a byte of the next response has come
	persists bool // several requests may be in progress

	request     *asking
	conditional bool // the requests of this link have conditions

	took      bool // a byte of a body was taken
	unflushed uint64
}

func (o *Object) connect(ctx context.Context) (*link, error) {
	c, err := o.dial(ctx, o.address())
	if err != nil {
		return nil, &broken{err}
	}
	l := &link{o: o, c: c, m: &memory{Memory: o.c.Memory}}
	l.request, l.conditional = o.asking()
	var pool devmem.Buffer
	if !o.c.Copy {
		pool = o.c.Pool
		f := devmem.Flow{Queue: o.c.Queue, Src: devmembase.AddrPort(c.RemoteAddr()), Dst: devmembase.AddrPort(c.LocalAddr())}
		if l.flow, err = o.c.Device.AddFlow(f); err != nil { // before the first request, so nothing arrives earlier
			return nil, errors.Join(err, l.close())
		}
	}
	l.s = devmem.NewStream(c, l.m, pool)
	o.stats.connections.Add(1)
	return l, nil
}

// close closes the connection, by a reset if responses are missing, and removes its flow rule. l may be nil.
func (l *link) close() error {
	if l == nil {
		return nil
	}
	l.release()
	if l.sent > 0 {
		_ = l.c.SetLinger(0)
	}
	err := l.c.Close()
	if errors.Is(err, net.ErrClosed) { // the Device has closed it
		err = nil
	}
	if l.flow != 0 {
		err = errors.Join(err, l.o.c.Device.DelFlow(l.flow))
	}
	return err
}

// hold makes the end of ctx end the link's waits, until release, which returns false if ctx has ended
// meanwhile.
func (l *link) hold(ctx context.Context) {
	l.stop = context.AfterFunc(ctx, func() { _ = l.c.SetDeadline(time.Unix(1, 0)) })
}

func (l *link) release() (ok bool) {
	stop := l.stop
	l.stop = nil
	return stop == nil || stop()
}

// failed returns nil if err is nil; otherwise the error that l.m has recorded, which ends the worker, or else err as a
// *broken.
func (l *link) failed(err error) error {
	if err == nil {
		return nil
	}
	if p := l.m.failed.Load(); p != nil {
		return fmt.Errorf("memory: %w", *p)
	}
	return &broken{err}
}

func (l *link) fill(ctx context.Context, n int) error {
	err := l.s.Fill(ctx, n)
	all := l.s.HostBytes()
	l.o.stats.host.Add(all - l.host)
	l.host = all
	l.begun = l.begun || l.s.Len() > 0
	return l.failed(err)
}

func (l *link) ask(requests int) error {
	l.sent += requests
	l.o.stats.requests.Add(uint64(requests))
	_, err := l.c.Write(l.out)
	return l.failed(err)
}

func (l *link) response(ctx context.Context) (*http.Response, error) {
	for range interims {
		resp, err := l.nextHead(ctx)
		if err != nil || resp.StatusCode >= 200 || resp.StatusCode == http.StatusSwitchingProtocols {
			return resp, err
		}
	}
	return nil, fmt.Errorf("%w: %d responses 1xx to one request", ErrProtocol, interims)
}

func (l *link) nextHead(ctx context.Context) (*http.Response, error) {
	l.head = l.head[:0]
	for {
		have := len(l.head)
		if have == headLimit {
			return nil, fmt.Errorf("%w: a head of more than %d bytes", ErrProtocol, headLimit)
		}
		if err := l.fill(ctx, have+1); err != nil {
			return nil, err
		}
		n := int(min(lookStep, l.s.Len()-uint64(have), uint64(headLimit-have)))
		l.head = append(l.head, make([]byte, n)...)
		if err := l.s.Look(ctx, l.head[have:], uint64(have)); err != nil {
			return nil, l.failed(err)
		}
		if l.flow != 0 {
			l.o.stats.looked.Add(uint64(n))
			l.o.stats.looks.Add(1)
		}
		if end := headEnd(l.head, max(0, have-2)); end >= 0 {
			if err := l.s.Skip(uint64(end)); err != nil {
				return nil, l.failed(err)
			}
			return l.parser.parse(l.head[:end])
		}
	}
}

// take takes n received bytes for offset off of dst; they are there after the next flush, which take makes itself once
// flushAt bytes wait for one.
func (l *link) take(ctx context.Context, dst devmem.Buffer, off, n uint64) error {
	if err := l.s.Take(ctx, dst, off, n); err != nil {
		return l.failed(err)
	}
	l.took = true
	l.o.stats.payload.Add(n)
	if l.unflushed += n; l.unflushed >= l.o.flushAt() {
		return l.flush(ctx)
	}
	return nil
}

// flush completes the moves of take, and frees their pages in the pool.
func (l *link) flush(ctx context.Context) error {
	l.unflushed = 0
	return l.failed(l.s.Flush(ctx))
}

// flushAt returns how many bytes a link may take before it must flush. Without Config.Copy they hold pages of the
// pool that other connections need.
func (o *Object) flushAt() uint64 {
	const most = 1 << 20
	if o.c.Copy {
		return most
	}
	return min(most, o.c.Pool.Size()/uint64(4*o.c.Connections))
}

package collective

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/limits"
)

// DefaultTimeout is the Timeout for a Config.Timeout of 0; on slow machines a longer one takes its place.
const DefaultTimeout = time.Duration(limits.Silence)

// Config configures a rank of a ring.
type Config struct {
	Rank, Ranks int // Rank: 0 to Ranks-1; Ranks: 1 to 1024

	Device devmem.Device
	Memory devmem.Memory // of the Device's GPUs
	GPU    int           // the GPU whose memory operations use

	Queue   int           // a receive queue that nothing else uses
	Pool    devmem.Buffer // of GPU, for received data; the Ring binds it
	Scratch devmem.Buffer // of GPU, for one chunk

	// Copy makes payload go through host memory, as a baseline; Pool and Queue are not used. All ranks must have the
	// same Copy.
	Copy bool

	Listen netip.AddrPort // the rank before connects to it
	Next   netip.AddrPort // the next rank listens on it
	// From is the local address of the connection to Next; zero: the Device chooses. TCP may not let a new connection
	// use the address for a while after an earlier one (TIME_WAIT).
	From netip.AddrPort

	// Timeout is how long a connection may make no progress during an operation; 0 means DefaultTimeout. The
	// acknowledgments of a slow rank's host are progress.
	Timeout time.Duration
}

// Error is an error in a step: in sending to the next rank, or in receiving from the rank before and adding. Rank is
// the neighbour.
type Error struct {
	Rank int
	Step string // as "all-reduce, step 2 of 6", or "join"
	Err  error
}

func (e *Error) Error() string { return fmt.Sprintf("rank %d: %s: %v", e.Rank, e.Step, e.Err) }

// Unwrap returns e.Err.
func (e *Error) Unwrap() error { return e.Err }

// Ring is a rank's place in a ring. One operation is in progress at a time.
type Ring struct {
	c          Config
	prev, next int

	rx   devmem.Binding
	tx   devmem.Binding // transmit binding of txOf
	txOf devmem.Buffer
	flow devmem.FlowID
	in   devmem.Conn // from prev; nil with one rank
	out  devmem.Conn // to next; nil with one rank

	stream *devmem.Stream // of in
	sender *devmem.Sender // on out

	now   sync.Mutex // held by an operation, and while Close unbinds
	stats Stats
	beats atomic.Uint64

	left chan struct{} // closed when the Ring is closed
	work sync.WaitGroup

	once sync.Once
	err  error // result of leave
}

// Stats counts bytes, and heartbeats.
type Stats struct {
	Sent, Received uint64
	Linear         uint64 // bytes that arrived in host memory during operations
	Looked         uint64 // bytes of hellos read in device memory
	Beats          uint64 // heartbeats sent to the rank before, or tried in vain
}

const maxRanks = 1024

func (c *Config) check() error {
	switch {
	case c.Ranks < 1 || c.Ranks > maxRanks:
		return fmt.Errorf("%d ranks: 1 to %d: %w", c.Ranks, maxRanks, syscall.EINVAL)
	case c.Rank < 0 || c.Rank >= c.Ranks:
		return fmt.Errorf("rank %d of %d: %w", c.Rank, c.Ranks, syscall.EINVAL)
	case c.Timeout < 0:
		return fmt.Errorf("a timeout of %v: %w", c.Timeout, syscall.EINVAL)
	case c.Device == nil || c.Memory == nil || c.Pool == nil && !c.Copy || c.Scratch == nil:
		return fmt.Errorf("a ring needs Device, Memory, Pool and Scratch: %w", syscall.EINVAL)
	case c.Scratch.GPU() != c.GPU || !c.Copy && c.Pool.GPU() != c.GPU:
		return fmt.Errorf("pool and scratch that are not of gpu %d, whose memory is reduced: %w", c.GPU, syscall.EXDEV)
	}
	return nil
}

// Join takes a rank's place in a ring, and waits for the connections with its neighbours; with one rank there are
// none.
func Join(ctx context.Context, c Config) (_ *Ring, err error) {
	c.Timeout = cmp.Or(c.Timeout, limits.Silence.Here())
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("ring: %w", err)
	}
	r := &Ring{c: c, left: make(chan struct{}), prev: (c.Rank + c.Ranks - 1) % c.Ranks, next: (c.Rank + 1) % c.Ranks}
	if c.Ranks == 1 {
		return r, nil
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("ring: %w", err), r.Close())
		}
	}()
	if err := r.steer(); err != nil {
		return nil, err
	}
	l, err := c.Device.Listen(c.Listen)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	work, ctx := errgroup.WithContext(ctx)
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	work.Go(func() error { return r.dial(ctx) })
	work.Go(func() error { return r.accept(ctx, l) })
	if work.Wait() != nil {
		return nil, context.Cause(ctx)
	}
	return r, nil
}

// steer binds the pool and adds the flow rule, unless Config.Copy is set. Join calls it before it listens: already the
// first byte then arrives in device memory.
func (r *Ring) steer() (err error) {
	if r.c.Copy {
		return nil
	}
	if r.rx, err = r.c.Device.BindRX(r.c.Pool, r.c.Queue); err != nil {
		return err
	}
	r.flow, err = r.c.Device.AddFlow(devmem.Flow{Dst: r.c.Listen, Queue: r.c.Queue})
	return err
}

// redial is the pause between attempts to connect.
const redial = 20 * time.Millisecond

func (r *Ring) dial(ctx context.Context) error {
	for {
		c, err := r.c.Device.Dial(ctx, r.c.From, r.c.Next)
		if err == nil {
			r.out, r.sender = c, devmem.NewSender(c, r.c.Memory)
			c.SetStallLimit(r.c.Timeout)
			h := hello{Magic: magic, Rank: uint32(r.c.Rank), Ranks: uint32(r.c.Ranks)}
			if err := binary.Write(c, binary.LittleEndian, h); err != nil {
				return r.fault(r.next, "join", err)
			}
			r.work.Go(r.hear)
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("rank %d at %v: %w", r.next, r.c.Next, errors.Join(context.Cause(ctx), err))
		case <-time.After(redial):
		}
	}
}

// accept waits for the connection of the rank before, and closes others. A ring of another size is an error.
func (r *Ring) accept(ctx context.Context, l devmem.Listener) error {
	for {
		c, err := l.AcceptConn()
		if err != nil {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			return fmt.Errorf("rank %d, which connects to %v: %w", r.prev, r.c.Listen, err)
		}
		c.SetStallLimit(r.c.Timeout)
		s := devmem.NewStream(c, r.c.Memory, r.c.Pool)
		h, err := r.head(ctx, s)
		if err == nil && h.Rank == uint32(r.prev) && h.Ranks == uint32(r.c.Ranks) {
			r.in, r.stream = c, s
			r.work.Go(r.beat)
			return nil
		}
		_ = c.SetLinger(0)
		_ = c.Close()
		if err == nil && h.Ranks != uint32(r.c.Ranks) {
			return fmt.Errorf("rank %d of %d connects to rank %d of %d: %w", h.Rank, h.Ranks, r.c.Rank, r.c.Ranks,
				syscall.EPROTO)
		}
	}
}

// hello is what the connecting rank sends first, little endian.
type hello struct {
	Magic       uint64
	Rank, Ranks uint32
}

const (
	helloLen = 16
	magic    = 0x31676e6972636e76 // "vncring1"
)

func (r *Ring) head(ctx context.Context, s *devmem.Stream) (h hello, err error) {
	var b [helloLen]byte
	if err := s.Fill(ctx, helloLen); err != nil {
		return h, err
	}
	if err := errors.Join(s.Look(ctx, b[:], 0), s.Skip(helloLen), s.Flush(ctx)); err != nil {
		return h, err
	}
	if s.HostBytes() == 0 {
		r.stats.Looked += helloLen
	}
	if _, err := binary.Decode(b[:], binary.LittleEndian, &h); err != nil || h.Magic != magic {
		return h, fmt.Errorf("it is none of a ring: %w", syscall.EPROTO)
	}
	return h, nil
}

func (r *Ring) fault(rank int, step string, err error) error {
	if e := (*Error)(nil); errors.As(err, &e) {
		return err
	}
	return &Error{Rank: rank, Step: step, Err: err}
}

// Stats returns a snapshot; it must not be called during an operation.
func (r *Ring) Stats() Stats {
	s := r.stats
	s.Beats = r.beats.Load()
	return s
}

// abort closes the Ring and resets the connections: TCP must not keep sending data of the buffer.
func (r *Ring) abort() {
	for _, c := range []devmem.Conn{r.in, r.out} {
		if c != nil {
			_ = c.SetLinger(0) // the connection may be closed
		}
	}
	_ = r.leave()
}

// Close leaves the ring, and ends the operation in progress. It is idempotent. Then the caller may close the
// buffers.
func (r *Ring) Close() error {
	err := r.leave()
	r.now.Lock()
	defer r.now.Unlock()
	return errors.Join(err, r.unbind())
}

// leave is Close without the wait for the operation, and without closing the binding for transmit.
func (r *Ring) leave() error {
	r.once.Do(func() {
		close(r.left)
		var errs []error
		for _, c := range []devmem.Conn{r.in, r.out} {
			if c != nil {
				if err := c.Close(); !errors.Is(err, net.ErrClosed) {
					errs = append(errs, err)
				}
			}
		}
		r.work.Wait()
		if r.flow != 0 {
			errs = append(errs, r.c.Device.DelFlow(r.flow))
		}
		if r.rx != nil {
			errs = append(errs, r.rx.Close())
			<-r.rx.Done()
		}
		r.err = errors.Join(errs...)
	})
	return r.err
}

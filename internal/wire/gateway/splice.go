package gateway

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/waiter"

	"vnic.dev/vnic/internal/ether"
)

const (
	chunkLen = 64 << 10
	// socketWriter collects shorter pieces of a guest's stream, and outSlot.refer copies shorter payload: that costs less
	// than handling each piece.
	directLen = 8 << 10
	// segmentLen is the most bytes of a host's stream that netstack gets at a time: the payload of its largest segment
	// (ether.MaxGSO).
	segmentLen = ether.MaxGSO - 160 - 1
)

var chunks = sync.Pool{New: func() any { return new([chunkLen]byte) }}

// splice joins a guest's connection and a host's, and closes both when both directions have ended. A failure, or the
// end of ctx, resets both. splice returns afterwards.
func splice(ctx context.Context, guest *guestConn, host hostConn) {
	abort := sync.OnceFunc(func() {
		guest.reset()
		host.reset()
	})
	stop := context.AfterFunc(ctx, abort)
	var back sync.WaitGroup
	back.Go(func() {
		if err := toHost(host, guest); err != nil {
			abort()
		}
	})
	if err := toGuest(guest, host); err != nil {
		abort()
	}
	back.Wait()
	if !stop() { // ctx has ended; abort returns when both are reset
		abort()
		return
	}
	guest.Close()
	host.Close()
}

func toHost(host hostConn, guest *guestConn) error {
	raw, err := host.SyscallConn()
	if err != nil {
		return err
	}
	chunk := chunks.Get().(*[chunkLen]byte)
	defer chunks.Put(chunk)
	s := socketWriter{chunk: chunk[:0]}
	more := guest.watch(waiter.ReadableEvents)
	defer more.end()
	for {
		var gerr tcpip.Error
		err := raw.Write(func(fd uintptr) bool {
			s.fd, s.full = int(fd), false
			for s.flush(nil); s.err == nil && !s.full; {
				if _, gerr = guest.ep.Read(&s, tcpip.ReadOptions{}); gerr != nil && !s.full {
					s.flush(nil)
					break
				}
			}
			return s.err != nil || !s.full
		})
		if err = errors.Join(err, s.err); err != nil {
			return err
		}
		switch gerr.(type) {
		case *tcpip.ErrWouldBlock:
			if err := more.wait(); err != nil {
				return err
			}
		case *tcpip.ErrClosedForReceive:
			return host.CloseWrite()
		default:
			return errors.New(gerr.String())
		}
	}
}

// socketWriter writes to a socket without waiting, because netstack calls Write with the endpoint locked.
type socketWriter struct {
	fd    int
	chunk []byte // collected, not yet written
	full  bool
	err   error
}

var errFull = errors.New("socket full")

// Write implements io.Writer.
func (s *socketWriter) Write(b []byte) (int, error) {
	if len(b) < directLen && len(b) <= cap(s.chunk)-len(s.chunk) {
		s.chunk = append(s.chunk, b...)
		return len(b), nil
	}
	n := s.flush(b)
	if s.err != nil {
		return n, s.err
	}
	if n < len(b) {
		return n, errFull
	}
	return n, nil
}

// flush writes the collected bytes and then b, until the socket is full or fails (full, err). It returns how many bytes
// of b it has written.
func (s *socketWriter) flush(b []byte) (done int) {
	for !s.full && s.err == nil && len(s.chunk)+len(b) > done {
		n, err := unix.Writev(s.fd, [][]byte{s.chunk, b[done:]})
		switch err {
		case nil:
			from := min(n, len(s.chunk))
			s.chunk = s.chunk[:copy(s.chunk, s.chunk[from:])]
			done += n - from
		case unix.EINTR:
		case unix.EAGAIN: // raw.Write of toHost then waits until the socket has room
			s.full = true
		default:
			s.err = err
		}
	}
	return done
}

func toGuest(guest *guestConn, host hostConn) error {
	raw, err := host.SyscallConn()
	if err != nil {
		return err
	}
	chunk := chunks.Get().(*[chunkLen]byte)
	defer chunks.Put(chunk)
	more := guest.watch(waiter.WritableEvents)
	defer more.end()
	for {
		var s socketReader
		var gerr tcpip.Error
		err := raw.Read(func(fd uintptr) bool {
			for s.fd = int(fd); s.look(chunk[:]); {
				if s.left == 0 {
					return s.ended
				}
				if _, gerr = guest.ep.Write(&s, tcpip.WriteOptions{}); gerr != nil {
					return true
				}
			}
			return true
		})
		switch {
		case err != nil || s.err != nil:
			return errors.Join(err, s.err)
		case s.ended:
			return guest.CloseWrite()
		}
		if !isFull(gerr) {
			return errors.New(gerr.String())
		}
		if err := more.wait(); err != nil {
			return err
		}
	}
}

// socketReader lets netstack read a socket without waiting: a tcpip.Payloader.
type socketReader struct {
	fd    int
	left  int
	ended bool
	err   error
}

// look sets left to how many bytes the socket has, at most segmentLen, and ended if its stream has ended; false: the
// socket has failed (err). With MSG_TRUNC the kernel copies no bytes of TCP to scratch (tcp(7)).
func (s *socketReader) look(scratch []byte) bool {
	for {
		n, _, err := unix.Recvfrom(s.fd, scratch[:segmentLen], unix.MSG_PEEK|unix.MSG_TRUNC)
		switch err {
		case nil:
			s.left, s.ended = min(n, segmentLen), n == 0
			return true
		case unix.EINTR:
		case unix.EAGAIN: // raw.Read of toGuest then waits until data comes
			s.left = 0
			return true
		default:
			s.err = err
			return false
		}
	}
}

// Len implements tcpip.Payloader.
func (s *socketReader) Len() int { return s.left }

// Read implements io.Reader.
func (s *socketReader) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	n, err := unix.Read(s.fd, b[:min(len(b), s.left)])
	switch {
	case err == unix.EINTR:
		return 0, nil
	case err != nil:
		s.err = err
	case n == 0:
		s.err = io.ErrUnexpectedEOF
	}
	s.left -= n
	return max(n, 0), s.err
}

type watch struct {
	c     *guestConn
	entry waiter.Entry
	ready chan struct{}
}

func (c *guestConn) watch(events waiter.EventMask) *watch {
	w := &watch{c: c}
	w.entry, w.ready = waiter.NewChannelEntry(events | waiter.EventHUp | waiter.EventErr)
	c.wq.EventRegister(&w.entry)
	return w
}

func (w *watch) end() { w.c.wq.EventUnregister(&w.entry) }

// wait waits until one of the watched events, a hang-up or an error may have come, or returns an error after
// guestConn.reset.
func (w *watch) wait() error {
	select {
	case <-w.ready:
		return nil
	case <-w.c.gone:
		return net.ErrClosed
	}
}

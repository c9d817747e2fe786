package plain

import (
	"cmp"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/devmembase"
)

// sends records the calls of SendDevmem that ReadCompletion has not reported.
type sends struct {
	mu     sync.Mutex
	total  uint64   // bytes written to the socket, by Write and SendDevmem
	done   uint32   // number of the first call not yet reported as complete
	ends   []uint64 // for each call from number done on, total after it
	failed error    // an error after which the connection cannot send; nil: none was found
}

func (c *conn) writable(err error) error {
	if devmembase.IsClosed(c.ended) {
		return c.wrap("send", net.ErrClosed)
	}
	return err
}

// Write implements net.Conn.
func (c *conn) Write(b []byte) (int, error) {
	c.sending.Lock()
	defer c.sending.Unlock()
	n, err := c.send(func() (int64, error) {
		n, err := c.TCPConn.Write(b)
		return int64(n), err
	})
	c.wrote(int(n), err, false)
	c.d.txLinear.Add(uint64(n))
	return int(n), c.writable(err)
}

// wrote records that n bytes were written to the socket, and err, unless it is nil or passing(err). call is true if
// SendDevmem wrote them: then wrote also records the call, if n > 0.
func (c *conn) wrote(n int, err error, call bool) {
	s := &c.sends
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total += uint64(n)
	if call && n > 0 {
		s.ends = append(s.ends, s.total)
	}
	if err != nil && !passing(err) {
		s.failed = err
	}
}

// passing reports whether err is of a deadline or a stall, after which the connection can still be used.
func passing(err error) bool {
	stalled := (*devmem.StallError)(nil)
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &stalled)
}

// SendDevmem implements devmem.Conn.
func (c *conn) SendDevmem(id uint32, ranges []devmem.Range) (n int, err error) {
	c.d.mu.Lock()
	b := c.d.bindings[id]
	c.d.mu.Unlock()
	if b == nil || !b.tx || !b.begin() {
		return 0, c.wrap("send", c.d.facts().NoTXBinding(id))
	}
	defer b.end()
	if ranges, err = b.buf.Inside(ranges); err != nil {
		return 0, c.wrap("send", err)
	}
	var parts net.Buffers
	for _, r := range ranges {
		parts = append(parts, b.buf.mem[r.Off:][:r.Len])
	}
	c.sending.Lock()
	defer c.sending.Unlock()
	k, err := c.send(func() (int64, error) { return parts.WriteTo(c.TCPConn) })
	c.wrote(int(k), err, true)
	c.d.txDevice.Add(uint64(k))
	if k > 0 && passing(err) {
		err = nil // a short send; the next call may return the error
	}
	return int(k), c.writable(err)
}

// begin counts a send and returns true; if the binding is closed, it only returns false.
func (b *binding) begin() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	b.sends++
	return true
}

func (b *binding) end() {
	b.mu.Lock()
	defer b.unlock()
	b.sends--
}

// unacknowledged returns how many bytes written to the socket the peer has not acknowledged, a FIN counted as one
// (SIOCOUTQ: net/ipv4/tcp.c, tcp_ioctl); 0 after Close.
func (c *conn) unacknowledged() (n int) {
	_ = c.raw.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) })
	return n
}

// reset returns ECONNRESET if the socket is in the state CLOSE, else nil. After the peer's FIN the goroutine read has
// ended, and so misses errors: reset returns the socket's, if any. Before, SO_ERROR would take it from read, which
// would then end with EOF.
func (c *conn) reset(ended bool) (err error) {
	const tcpClose = 7 // include/net/tcp_states.h
	if i, ok := c.info(); !ok || i.State != tcpClose {
		return nil
	}
	err = syscall.ECONNRESET
	if ended {
		_ = c.raw.Control(func(fd uintptr) {
			if n, e := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR); e == nil && n != 0 {
				err = syscall.Errno(n)
			}
		})
	}
	return err
}

// Bounds of the interval at which ReadCompletion polls.
const (
	lookSoon = 100 * time.Microsecond
	lookLate = 10 * time.Millisecond
)

// ReadCompletion implements devmem.Conn. It polls, as Linux reports no event for each acknowledgment.
func (c *conn) ReadCompletion(deadline time.Time) (lo, hi uint32, err error) {
	s := c.watch("read completion")
	s.Begin()
	for pause := lookSoon; ; pause = min(2*pause, lookLate) {
		lo, hi, ok, err := c.complete()
		if ok || err != nil {
			return lo, hi, err
		}
		left := pause
		if !deadline.IsZero() {
			if left = min(left, time.Until(deadline)); left <= 0 {
				return 0, 0, c.wrap("read completion", os.ErrDeadlineExceeded)
			}
		}
		if err := s.Check(time.Now()); err != nil {
			return 0, 0, c.wrap("read completion", err)
		}
		select {
		case <-time.After(left):
		case <-c.ended:
		}
	}
}

// complete returns the numbers lo to hi of the calls not reported before whose bytes the peer has acknowledged, or of
// all calls not reported before if the connection has failed. If there are none, ok is false, and err is the
// connection's error, if any. After Close, complete returns only an error.
func (c *conn) complete() (lo, hi uint32, ok bool, err error) {
	waiting := uint64(c.unacknowledged())
	c.mu.Lock()
	closed, bad := c.closed, c.err
	c.mu.Unlock()
	var reset error
	if waiting > 0 {
		reset = c.wrap("send", c.reset(bad != nil))
	}
	if errors.Is(bad, io.EOF) {
		bad = nil
	}
	s := &c.sends
	s.mu.Lock()
	defer s.mu.Unlock()
	if closed {
		return 0, 0, false, c.wrap("read completion", net.ErrClosed)
	}
	s.failed = cmp.Or(s.failed, bad, reset)
	n := 0
	for n < len(s.ends) && (s.failed != nil || s.ends[n] <= s.total-min(waiting, s.total)) {
		n++
	}
	if n == 0 {
		return 0, 0, false, s.failed
	}
	lo = s.done
	s.done += uint32(n)
	s.ends = s.ends[n:]
	return lo, s.done - 1, true, nil
}

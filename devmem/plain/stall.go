package plain

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// progress returns a number that changes with each byte received and each byte acknowledged.
func (c *conn) progress() (n uint64) {
	_ = c.raw.Control(func(fd uintptr) {
		if i, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			n = i.Bytes_received + i.Bytes_acked
		}
	})
	return n
}

// stall finds out when a connection has made no progress for its limit, for a caller that waits on
// it.
type stall struct {
	c     *conn
	limit time.Duration // 0: none
	since time.Time
	last  uint64
}

func (c *conn) watch() stall {
	c.mu.Lock()
	s := stall{c: c, limit: c.stallLimit}
	c.mu.Unlock()
	if s.limit > 0 {
		s.since, s.last = time.Now(), c.progress()
	}
	return s
}

// every returns how often to call look, if there is a limit.
func (s *stall) every() time.Duration { return max(s.limit/8, time.Millisecond) }

// look returns a *devmem.StallError once there was no progress for the limit.
func (s *stall) look(op string) error {
	if s.limit == 0 {
		return nil
	}
	if p := s.c.progress(); p != s.last {
		s.last, s.since = p, time.Now()
		return nil
	}
	if time.Since(s.since) < s.limit {
		return nil
	}
	return s.c.stalled(op, s.limit)
}

// send calls write, which writes to the socket and waits for room: until the write deadline, or
// until the connection stalls.
func (c *conn) send(write func() (int64, error)) (n int64, err error) {
	s := c.watch()
	if s.limit == 0 {
		return write()
	}
	done, watched := make(chan struct{}), make(chan error, 1)
	go func() {
		t := time.NewTicker(s.every())
		defer t.Stop()
		for {
			select {
			case <-done:
				watched <- nil
				return
			case <-t.C:
			}
			if err := s.look("send"); err != nil {
				_ = c.TCPConn.SetWriteDeadline(time.Now())
				watched <- err
				return
			}
		}
	}()
	n, err = write()
	close(done)
	if stalled := <-watched; stalled != nil {
		c.mu.Lock()
		_ = c.TCPConn.SetWriteDeadline(c.writeDeadline)
		c.mu.Unlock()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = stalled
		}
	}
	return n, err
}

// SetWriteDeadline implements net.Conn.
func (c *conn) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writeDeadline = t
	return c.TCPConn.SetWriteDeadline(t)
}

// SetStallLimit implements devmem.Conn.
func (c *conn) SetStallLimit(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stallLimit = d
}

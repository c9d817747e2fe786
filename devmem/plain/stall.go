package plain

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/devmembase"
)

// info returns TCP_INFO; false: the socket is closed.
func (c *conn) info() (i *unix.TCPInfo, ok bool) {
	err := c.raw.Control(func(fd uintptr) {
		var err error
		i, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		ok = err == nil
	})
	return i, ok && err == nil
}

// progress returns a number that changes with each byte received or acknowledged.
func (c *conn) progress() uint64 {
	i, ok := c.info()
	if !ok {
		return 0
	}
	return i.Bytes_received + i.Bytes_acked
}

func (c *conn) watch(op string) *devmembase.Stall {
	c.mu.Lock()
	limit := c.stallLimit
	c.mu.Unlock()
	return &devmembase.Stall{Limit: limit, Progress: c.progress,
		Stalled: func(time.Duration) error { return c.stalled(op, limit) }}
}

// send calls write, and returns its results. If SetStallLimit has set a limit, and the connection makes no progress
// for so long meanwhile, send makes write return, and returns a *devmem.StallError.
func (c *conn) send(write func() (int64, error)) (n int64, err error) {
	s := c.watch("send")
	if s.Limit == 0 {
		return write()
	}
	done, watched := make(chan struct{}), make(chan error, 1)
	go func() {
		err := s.Wait(done, nil, nil)
		if err != nil {
			_ = c.TCPConn.SetWriteDeadline(time.Now())
		}
		watched <- err
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

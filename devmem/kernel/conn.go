package kernel

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/deadline"
	"vnic.dev/vnic/internal/devmembase"
)

// Conn is a devmem.Conn: a TCP socket of the kernel.
type Conn struct {
	d             *Device
	s             *sock
	local, remote *net.TCPAddr
	rd, wd        *deadline.Deadline
	stall         atomic.Int64 // SetStallLimit's limit in nanoseconds; 0: none
	failed        atomic.Pointer[syscall.Errno]
	setLinger     atomic.Bool
	once          sync.Once

	rmu     sync.Mutex // one reader at a time
	control []byte     // scratch of receive, under rmu

	tokens tokens

	wmu sync.Mutex // one writer at a time
	iov []iovec    // scratch of sendGroup, under wmu
	tx  [txSpace]byte

	cmu   sync.Mutex // one ReadCompletion at a time
	sends sendLog
}

var _ devmem.Conn = (*Conn)(nil)

// newConn makes a Conn that owns s, and closes s after an error.
func (d *Device) newConn(s *sock) (*Conn, error) {
	c := &Conn{d: d, s: s, rd: deadline.New(), wd: deadline.New()}
	var local, remote unix.Sockaddr
	err := s.on(func(fd int) (err error) {
		var lerr, rerr error
		local, lerr = unix.Getsockname(fd)
		remote, rerr = unix.Getpeername(fd)
		if lerr != nil || rerr != nil {
			err = syscall.ECONNABORTED // ENOTCONN: the connection has ended meanwhile
		}
		return errors.Join(err,
			os.NewSyscallError("TCP_NODELAY", unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)),
			os.NewSyscallError("SO_ZEROCOPY", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ZEROCOPY, 1)))
	})
	if err == nil {
		if c.local, c.remote = tcpAddr(local), tcpAddr(remote); !d.conns.Add(c, nil) {
			err = net.ErrClosed
		}
	}
	if err != nil {
		_ = s.close()
		return nil, err
	}
	return c, nil
}

// wait waits for a signal on sig. It returns an error if the connection is closed, if d is closed (a deadline has
// passed), or if the stall limit has passed without progress.
func (c *Conn) wait(op string, sig, d <-chan struct{}) error {
	s := devmembase.Stall{Limit: time.Duration(c.stall.Load()), Progress: c.progress,
		Stalled: func(idle time.Duration) error { return c.stalled(op, idle) }}
	return s.Wait(sig, c.s.closed, d)
}

// attempt calls f until it does not return EAGAIN, and waits for a signal on sig before each new call. It returns an
// error, without another call of f, if the connection or d (a deadline) is closed, or if wait returns one.
func (c *Conn) attempt(op string, sig, d <-chan struct{}, f func(fd int) error) error {
	for {
		if devmembase.IsClosed(d) && !devmembase.IsClosed(c.s.closed) {
			return os.ErrDeadlineExceeded
		}
		if err := c.s.on(f); err != syscall.EAGAIN {
			return err
		}
		if err := c.wait(op, sig, d); err != nil {
			return err
		}
	}
}

// fails records the first error with which the connection fails, as Linux reports it only once, and returns err.
func (c *Conn) fails(err error) error {
	if err == nil { // return before e is allocated on the heap
		return nil
	}
	var e syscall.Errno
	if errors.As(err, &e) {
		switch e {
		case syscall.ECONNRESET, syscall.ETIMEDOUT, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.ECONNABORTED,
			syscall.ENETDOWN:
			c.failed.CompareAndSwap(nil, &e)
		}
	}
	return err
}

// end returns the error for a stream that has ended: the recorded error of the connection, or io.EOF.
func (c *Conn) end() error {
	if e := c.failed.Load(); e != nil {
		return *e
	}
	return io.EOF
}

// Write implements net.Conn.
func (c *Conn) Write(b []byte) (int, error) {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	done := 0
	for {
		err := c.attempt("write", c.s.wsig, c.wd.Wait(), func(fd int) error {
			if len(b) == 0 {
				return nil
			}
			n, err := unix.SendmsgN(fd, b[done:], nil, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
			if err == nil {
				done += n
				c.d.count.txLinear.Add(uint64(n))
			}
			if err == unix.EINTR {
				return nil
			}
			return err
		})
		if err != nil || done == len(b) {
			return done, c.opError("write", c.fails(err))
		}
	}
}

// Close implements net.Conn.
func (c *Conn) Close() error {
	err := net.ErrClosed
	c.once.Do(func() { err = c.close() })
	return c.opError("close", err)
}

func (c *Conn) close() error {
	lingers := false
	err := c.s.on(func(fd int) error {
		c.tokens.release(fd) // Linux would keep the tokens until it destroys the socket
		if lingers = c.shouldLinger(fd); !lingers {
			c.count(fd)
		}
		return nil
	})
	if !lingers || !c.d.startLinger(c) {
		err = c.s.close()
		c.sends.abandon()
	}
	c.rd.Set(time.Time{})
	c.wd.Set(time.Time{})
	c.tokens.clear()
	c.d.conns.Remove(c)
	return err
}

// CloseWrite implements devmem.Conn.
func (c *Conn) CloseWrite() error {
	return c.opError("shutdown", c.s.on(func(fd int) error { return unix.Shutdown(fd, unix.SHUT_WR) }))
}

// SetLinger implements devmem.Conn.
func (c *Conn) SetLinger(sec int) error {
	l := unix.Linger{Linger: int32(max(sec, 0))}
	if sec >= 0 {
		l.Onoff = 1
	}
	c.setLinger.Store(sec >= 0)
	return c.opError("set linger", c.s.on(func(fd int) error {
		return unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &l)
	}))
}

// LocalAddr implements net.Conn.
func (c *Conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr implements net.Conn.
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline implements net.Conn.
func (c *Conn) SetDeadline(t time.Time) error { return c.setDeadlines(t, c.rd, c.wd) }

// SetReadDeadline implements net.Conn.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.setDeadlines(t, c.rd) }

// SetWriteDeadline implements net.Conn.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.setDeadlines(t, c.wd) }

func (c *Conn) setDeadlines(t time.Time, ds ...*deadline.Deadline) error {
	return c.opError("set", c.s.on(func(int) error {
		for _, d := range ds {
			d.Set(t)
		}
		return nil
	}))
}

func (c *Conn) opError(op string, err error) error {
	return devmembase.OpError(op, err, c.local, c.remote)
}

func (c *Conn) String() string { return fmt.Sprintf("%v->%v", c.local, c.remote) }

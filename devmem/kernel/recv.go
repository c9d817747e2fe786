package kernel

import (
	"errors"
	"net"
	"syscall"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/devmem"
)

// errNoWait stands for an EAGAIN after which attempt must not wait.
var errNoWait = errors.New("nothing to receive")

// Read implements net.Conn.
func (c *Conn) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	c.rmu.Lock()
	defer c.rmu.Unlock()
	n, _, _, err := c.receive("read", b, nil, 0)
	c.d.count.rxLinear.Add(uint64(n))
	return n, c.opError("read", err)
}

// receive calls recvmsg until it returns data, the end of the stream or an error; after EAGAIN it waits, but if
// flags have MSG_DONTWAIT, returns EAGAIN. The caller holds rmu.
func (c *Conn) receive(op string, b []byte, frags []devmem.Frag, flags int) (n, nfrags, nlinear int, err error) {
	var control []byte
	if flags&msgSockDevmem != 0 {
		if need := len(frags) * fragSpace; len(c.control) < need {
			c.control = make([]byte, need)
		}
		control = c.control[:len(frags)*fragSpace]
	}
	wait := flags&unix.MSG_DONTWAIT == 0
	err = c.attempt(op, c.s.rsig, c.rd.Wait(), func(fd int) error {
		var nc int
		var err error
		n, nc, err = recvmsg(fd, b, control, flags|unix.MSG_DONTWAIT)
		switch {
		case err == syscall.EAGAIN && !wait:
			return errNoWait
		case err != nil:
			return err
		case n == 0:
			return c.end()
		}
		if flags&msgSockDevmem == 0 {
			nlinear = n
			return nil
		}
		if nfrags, nlinear, err = parseFrags(control[:nc], frags); err == nil && nfrags == 0 {
			nlinear = n // the packets came through no bound queue
		}
		c.tokens.issued(c.d, frags[:nfrags])
		return err
	})
	if err == errNoWait {
		err = syscall.EAGAIN
	}
	return n, nfrags, nlinear, c.fails(err)
}

// RecvDevmem implements devmem.Conn. With Trunc it omits MSG_SOCK_DEVMEM: the kernel then returns no frags
// (net/ipv4/tcp.c:tcp_recvmsg_locked).
func (c *Conn) RecvDevmem(frags []devmem.Frag, linear []byte, flags devmem.RecvFlags) (n, nfrags, nlinear int,
	err error) {
	if len(linear) == 0 {
		return 0, 0, 0, nil
	}
	f := msgSockDevmem
	if flags&devmem.Trunc != 0 {
		f = unix.MSG_TRUNC
	}
	if flags&devmem.Peek != 0 {
		f |= unix.MSG_PEEK
	}
	if flags&devmem.DontWait != 0 {
		f |= unix.MSG_DONTWAIT
	}
	c.rmu.Lock()
	defer c.rmu.Unlock()
	n, nfrags, nlinear, err = c.receive("recv", linear, frags, f)
	if flags&devmem.Trunc != 0 {
		return n, 0, 0, c.opError("recv", err)
	}
	c.d.count.rxLinear.Add(uint64(nlinear))
	c.d.count.rxDevice.Add(uint64(n - nlinear))
	return n, nfrags, nlinear, c.opError("recv", err)
}

// DontNeed implements devmem.Conn.
func (c *Conn) DontNeed(ranges []devmem.TokenRange) (freed int, err error) {
	if len(ranges) == 0 || len(ranges) > devmem.MaxTokenRanges {
		return 0, c.opError("dontneed", syscall.EINVAL)
	}
	err = c.s.on(func(fd int) (err error) {
		c.tokens.returned(ranges)
		freed, err = dontNeed(fd, ranges)
		return err
	})
	if err == net.ErrClosed {
		return 0, nil // Close returns the tokens
	}
	return freed, c.opError("dontneed", err)
}

package kernel

import (
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/deadline"
	"vnic.dev/vnic/internal/devmembase"
)

// maxPieces is how many pieces of memory a segment may have: drivers cannot linearize unreadable memory, and
// drop a segment with too many each time it is sent. The lowest known limit is gve's, 9 besides the header
// (gve_tx_dqo.c:gve_can_send_tso).
const maxPieces = 9

// SendDevmem implements devmem.Conn.
func (c *Conn) SendDevmem(binding uint32, ranges []devmem.Range) (n int, err error) {
	b := c.d.txBinding(binding)
	if b == nil {
		return 0, c.opError("send", c.d.facts().NoTXBinding(binding))
	}
	rest, err := b.buf.Inside(ranges)
	if err != nil {
		return 0, c.opError("send", err)
	}
	c.wmu.Lock()
	defer c.wmu.Unlock()
	var call *sendCall
	mss := 0
	if len(rest) > 1 { // group does not divide a range
		mss = c.mss()
	}
	for len(rest) > 0 && err == nil {
		k := group(rest, mss)
		var m int
		call, m, err = c.sendGroup(b, rest[:k], call)
		n += m
		rest = rest[k:]
	}
	c.sends.end(call)
	c.d.count.txDevice.Add(uint64(n))
	return n, c.opError("send", c.fails(err))
}

// group returns how many of the first ranges, from 1 to maxIovecs, may go into one sendmsg, which ends a packet: if mss
// is not 0, a segment of mss bytes then has at most maxPieces pieces, unless one range alone has more. The kernel cuts
// ranges at page boundaries.
func group(ranges []devmem.Range, mss int) int {
	var sizes [maxPieces - 1]uint64 // sizes of the last pieces
	var inner uint64                // sum of sizes; a segment with these and two more pieces has at least inner+2 bytes
	pieces := 0
	for i, r := range ranges {
		if i == maxIovecs {
			return i
		}
		for off, left := r.Off, r.Len; left > 0; {
			if pieces >= maxPieces && inner+2 <= uint64(mss) && i > 0 {
				return i
			}
			k := min(left, devmem.PageSize-off%devmem.PageSize)
			last := &sizes[pieces%len(sizes)]
			inner += k - *last
			*last = k
			pieces++
			off, left = off+k, left-k
		}
	}
	return len(ranges)
}

// sendGroup queues ranges to be sent; it waits for room, at most until the write deadline. It returns call, or a new
// record if call is nil and it queued a byte, and how many bytes it queued.
func (c *Conn) sendGroup(b *binding, ranges []devmem.Range, call *sendCall) (_ *sendCall, sent int, err error) {
	c.iov = c.iov[:0]
	left := 0
	for _, r := range ranges {
		c.iov = append(c.iov, iovec{b.base + r.Off, r.Len})
		left += int(r.Len)
	}
	iov := c.iov
	var control []byte
	if !b.host {
		control = txCmsg(&c.tx, b.id)
	}
	for left > 0 && err == nil {
		err = c.attempt("send", c.s.wsig, c.wd.Wait(), func(fd int) error {
			c.sends.mu.Lock()
			n, err := sendmsg(fd, iov, control, unix.MSG_ZEROCOPY|unix.MSG_EOR|unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
			if err == nil && n > 0 {
				call = c.sends.queued(call, b)
				iov = cut(iov, n)
				left -= n
				sent += n
			}
			c.sends.mu.Unlock()
			if err == syscall.ENOBUFS {
				return c.optmemFull(fd)
			}
			return err
		})
	}
	return call, sent, err
}

func cut(iov []iovec, n int) []iovec {
	for n > 0 {
		k := min(uint64(n), iov[0].len)
		iov[0].base += k
		iov[0].len -= k
		n -= int(k)
		if iov[0].len == 0 {
			iov = iov[1:]
		}
	}
	return iov
}

// optmemFull handles ENOBUFS: the notifications of sends fill the memory that net.core.optmem_max allows. It
// returns nil if the send may succeed now, EAGAIN if a completion may free memory, else ENOBUFS.
func (c *Conn) optmemFull(fd int) error {
	if c.reap(fd) {
		return nil // reap has freed memory
	}
	if c.sends.underWay() == 0 {
		return syscall.ENOBUFS // no notification will free memory
	}
	return syscall.EAGAIN
}

// reap records the completions on the error queue in c.sends, and reports whether there was one.
func (c *Conn) reap(fd int) (some bool) {
	var control [completeRoom]byte
	for {
		_, nc, err := recvmsg(fd, nil, control[:], unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT)
		if err != nil {
			break // normally EAGAIN: the queue is empty
		}
		r, ok, err := parseCompletion(control[:nc])
		if err != nil || !ok {
			continue
		}
		c.sends.mu.Lock()
		c.sends.completed(r)
		c.sends.mu.Unlock()
		some = true
	}
	if some {
		signal(c.s.esig) // for another call that waits
	}
	return some
}

// ReadCompletion implements devmem.Conn.
func (c *Conn) ReadCompletion(limit time.Time) (lo, hi uint32, err error) {
	c.cmu.Lock()
	defer c.cmu.Unlock()
	d := deadline.New()
	d.Set(limit)
	defer d.Set(time.Time{})
	end := d.Wait()
	for {
		var over error
		if err := c.s.on(func(fd int) error {
			over = c.over(fd) // before reap: then reap finds all sends that the end of the connection completes
			c.reap(fd)
			return nil
		}); err != nil {
			return 0, 0, c.opError("completion", err)
		}
		r, ok, none := c.sends.take()
		switch {
		case ok:
			return r.lo, r.hi, nil
		case none && over != nil:
			return 0, 0, c.opError("completion", over)
		case devmembase.IsClosed(end):
			return 0, 0, c.opError("completion", os.ErrDeadlineExceeded)
		}
		if err := c.wait("completion", c.s.esig, end); err != nil && err != os.ErrDeadlineExceeded {
			return 0, 0, c.opError("completion", err)
		}
	}
}

// over returns the error of a connection that has ended; else nil.
func (c *Conn) over(fd int) error {
	if e := c.failed.Load(); e != nil {
		return *e
	}
	info, err := tcpInfo(fd)
	if err != nil || info.State != tcpClose {
		return nil
	}
	if e, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR); err == nil && e != 0 { // this clears the error
		_ = c.fails(syscall.Errno(e))
	}
	if e := c.failed.Load(); e != nil {
		return *e
	}
	return syscall.EPIPE // both ends have closed, or the error was read before
}

package kernel

import (
	"net"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/limits"
)

// shouldLinger reports whether Close must keep the socket open (startLinger): whether sends are in progress, which
// nothing could abort after close(2). It returns false if there is unread data, with which close(2) resets the
// connection, and while SetLinger has set a time, which the kernel obeys.
func (c *Conn) shouldLinger(fd int) bool {
	if c.setLinger.Load() {
		return false
	}
	if n, err := unix.IoctlGetInt(fd, unix.SIOCINQ); err != nil || n > 0 {
		return false
	}
	c.reap(fd)
	return c.sends.underWay() > 0
}

// startLinger shuts a connection down, and starts a goroutine that closes the socket when the sends are complete or the
// device is closed. If the poller cannot watch the socket, startLinger closes the socket at once. It returns false, and
// does nothing, if the device is closed already.
func (d *Device) startLinger(c *Conn) bool {
	return d.conns.Do(func() {
		fd, err := c.s.detach()
		if err != nil {
			return // another call has closed the socket
		}
		// As after close(2), a peer that sends more gets a reset.
		_ = unix.Shutdown(fd, unix.SHUT_RDWR)
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(limits.Linger.Here()/time.Millisecond))
		s, err := d.poll.newSock(fd)
		if err != nil {
			c.sends.abandon()
			return
		}
		d.work.Go(func() { c.linger(s) })
	})
}

func (c *Conn) linger(s *sock) {
	fd := s.fd // only this goroutine closes it
	for c.reap(fd); c.sends.underWay() > 0; c.reap(fd) {
		select {
		case <-s.esig:
			continue
		case <-c.d.aborted:
			_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
		}
		break
	}
	c.count(fd)
	_ = s.close()
	c.sends.abandon()
}

// detach ends the sock, but leaves its open descriptor to the caller.
func (s *sock) detach() (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fd < 0 {
		return -1, net.ErrClosed
	}
	fd := s.fd
	_ = s.p.control(unix.EPOLL_CTL_DEL, fd, nil)
	s.invalidate()
	return fd, nil
}

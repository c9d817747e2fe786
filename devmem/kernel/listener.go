package kernel

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/devmem"
)

// Listener is a devmem.Listener.
type Listener struct {
	d     *Device
	s     *sock
	local *net.TCPAddr
	mu    sync.Mutex // one accept at a time
}

var _ devmem.Listener = (*Listener)(nil)

// Listen implements devmem.Device.
func (d *Device) Listen(local netip.AddrPort) (devmem.Listener, error) {
	l, err := d.listen(local)
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: "tcp", Source: net.TCPAddrFromAddrPort(local), Err: err}
	}
	return l, nil
}

func (d *Device) listen(local netip.AddrPort) (*Listener, error) {
	s, a, err := d.socket(local)
	if err != nil {
		return nil, err
	}
	l := &Listener{d: d, s: s}
	err = s.on(func(fd int) error {
		if _, is6 := a.(*unix.SockaddrInet6); is6 {
			if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1); err != nil {
				return os.NewSyscallError("IPV6_V6ONLY", err)
			}
		}
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
			return os.NewSyscallError("SO_REUSEADDR", err)
		}
		if err := unix.Bind(fd, a); err != nil {
			return os.NewSyscallError("bind", err)
		}
		if err := unix.Listen(fd, unix.SOMAXCONN); err != nil {
			return os.NewSyscallError("listen", err)
		}
		name, err := unix.Getsockname(fd)
		l.local = tcpAddr(name)
		return os.NewSyscallError("getsockname", err)
	})
	if err == nil && !d.listeners.Add(l, nil) {
		err = net.ErrClosed
	}
	if err != nil {
		_ = s.close()
		return nil, err
	}
	return l, nil
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) { return l.AcceptConn() }

// AcceptConn implements devmem.Listener.
func (l *Listener) AcceptConn() (devmem.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		var s *sock
		err := l.s.on(func(listener int) error {
			fd, _, err := unix.Accept4(listener, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
			if err == nil {
				s, err = l.d.poll.newSock(fd)
			}
			return os.NewSyscallError("accept", err)
		})
		var c *Conn
		if err == nil {
			c, err = l.d.newConn(s)
		}
		switch {
		case err == nil:
			return c, nil
		case errors.Is(err, syscall.ECONNABORTED) || errors.Is(err, syscall.EINTR): // the listener continues
			continue
		case !errors.Is(err, syscall.EAGAIN):
			return nil, &net.OpError{Op: "accept", Net: "tcp", Source: l.local, Err: err}
		}
		select {
		case <-l.s.rsig:
		case <-l.s.closed:
		}
	}
}

// Addr implements net.Listener.
func (l *Listener) Addr() net.Addr { return l.local }

// Close implements net.Listener.
func (l *Listener) Close() error {
	if err := l.s.close(); err != nil {
		return fmt.Errorf("close listener on %v: %w", l.local, err)
	}
	l.d.listeners.Remove(l)
	return nil
}

package kernel

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/diagnosis"
)

// errDown means that the kernel lists no receive queue, as while the interface is down.
const errDown = syscall.ENETDOWN

func sockaddr(a netip.AddrPort, index int) (unix.Sockaddr, int) {
	ip := a.Addr().Unmap()
	if !ip.Is6() {
		s := &unix.SockaddrInet4{Port: int(a.Port())}
		if ip.Is4() {
			s.Addr = ip.As4()
		}
		return s, unix.AF_INET
	}
	s := &unix.SockaddrInet6{Port: int(a.Port()), Addr: ip.As16()}
	if ip.IsLinkLocalUnicast() || ip.IsLinkLocalMulticast() {
		s.ZoneId = uint32(index)
	}
	return s, unix.AF_INET6
}

func tcpAddr(s unix.Sockaddr) *net.TCPAddr {
	switch s := s.(type) {
	case *unix.SockaddrInet4:
		return net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.AddrFrom4(s.Addr), uint16(s.Port)))
	case *unix.SockaddrInet6:
		a := netip.AddrFrom16(s.Addr)
		if s.ZoneId != 0 {
			if ifc, err := net.InterfaceByIndex(int(s.ZoneId)); err == nil {
				a = a.WithZone(ifc.Name)
			}
		}
		return net.TCPAddrFromAddrPort(netip.AddrPortFrom(a, uint16(s.Port)))
	}
	return &net.TCPAddr{}
}

// socket makes a socket of a's address family that is bound to the device's interface (SO_BINDTODEVICE), as sends from
// a binding need a route over that interface. It returns a as a Sockaddr, too.
func (d *Device) socket(a netip.AddrPort) (*sock, unix.Sockaddr, error) {
	sa, family := sockaddr(a, d.index)
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
	if err != nil {
		return nil, nil, os.NewSyscallError("socket", err)
	}
	if err := unix.BindToDevice(fd, d.name); err != nil {
		_ = unix.Close(fd)
		return nil, nil, os.NewSyscallError("SO_BINDTODEVICE", err)
	}
	s, err := d.poll.newSock(fd)
	return s, sa, err
}

// Dial implements devmem.Device.
func (d *Device) Dial(ctx context.Context, local, remote netip.AddrPort) (devmem.Conn, error) {
	c, err := d.connect(ctx, local, remote)
	if err != nil {
		e := &net.OpError{Op: "dial", Net: "tcp", Addr: net.TCPAddrFromAddrPort(remote), Err: diagnosis.Dial(err, remote)}
		if local.IsValid() {
			e.Source = net.TCPAddrFromAddrPort(local)
		}
		return nil, e
	}
	return c, nil
}

func (d *Device) connect(ctx context.Context, local, remote netip.AddrPort) (*Conn, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	if !remote.IsValid() || local.IsValid() && local.Addr().Unmap().Is4() != remote.Addr().Unmap().Is4() {
		return nil, fmt.Errorf("from %v to %v: %w", local, remote, syscall.EINVAL)
	}
	s, to, err := d.socket(remote)
	if err != nil {
		return nil, err
	}
	err = s.on(func(fd int) error {
		if local.IsValid() || local.Port() != 0 {
			if !local.Addr().IsValid() {
				local = netip.AddrPortFrom(netip.IPv4Unspecified(), local.Port())
				if remote.Addr().Unmap().Is6() {
					local = netip.AddrPortFrom(netip.IPv6Unspecified(), local.Port())
				}
			}
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) // an earlier connection may have used the port
			from, _ := sockaddr(local, d.index)
			if err := unix.Bind(fd, from); err != nil {
				return os.NewSyscallError("bind", err)
			}
		}
		return os.NewSyscallError("connect", unix.Connect(fd, to))
	})
	if errors.Is(err, syscall.EINPROGRESS) || errors.Is(err, syscall.EINTR) {
		err = s.connected(ctx)
	}
	if err != nil {
		_ = s.close()
		return nil, err
	}
	return d.newConn(s)
}

// connected waits for the result of a non-blocking connect, until the socket is closed or ctx ends.
func (s *sock) connected(ctx context.Context) error {
	for {
		err := s.on(func(fd int) error {
			e, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
			if err == nil && e != 0 {
				err = syscall.Errno(e)
			}
			if err == nil {
				_, err = unix.Getpeername(fd)
			}
			return os.NewSyscallError("connect", err)
		})
		if !errors.Is(err, syscall.ENOTCONN) { // ENOTCONN: the connect has not ended
			return err
		}
		select {
		case <-s.wsig:
		case <-s.closed:
			return net.ErrClosed
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

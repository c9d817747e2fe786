package stack

import (
	"io"
	"net"
	"os"
	"syscall"

	"gvisor.dev/gvisor/pkg/tcpip"
)

// errno is Linux's number for a netstack error.
func errno(err tcpip.Error) syscall.Errno {
	switch err.(type) {
	case *tcpip.ErrConnectionReset:
		return syscall.ECONNRESET
	case *tcpip.ErrConnectionRefused:
		return syscall.ECONNREFUSED
	case *tcpip.ErrConnectionAborted, *tcpip.ErrAborted:
		return syscall.ECONNABORTED
	case *tcpip.ErrTimeout:
		return syscall.ETIMEDOUT
	case *tcpip.ErrHostUnreachable:
		return syscall.EHOSTUNREACH
	case *tcpip.ErrHostDown:
		return syscall.EHOSTDOWN
	case *tcpip.ErrNetworkUnreachable, *tcpip.ErrNoNet:
		return syscall.ENETUNREACH
	case *tcpip.ErrClosedForSend:
		return syscall.EPIPE
	case *tcpip.ErrNotConnected:
		return syscall.ENOTCONN
	case *tcpip.ErrPortInUse, *tcpip.ErrNoPortAvailable, *tcpip.ErrAlreadyBound:
		return syscall.EADDRINUSE
	case *tcpip.ErrBadLocalAddress, *tcpip.ErrBadAddress:
		return syscall.EADDRNOTAVAIL
	case *tcpip.ErrWouldBlock:
		return syscall.EAGAIN
	case *tcpip.ErrNoBufferSpace:
		return syscall.ENOBUFS
	case *tcpip.ErrNotPermitted, *tcpip.ErrBroadcastDisabled:
		return syscall.EPERM
	case *tcpip.ErrNotSupported:
		return syscall.EOPNOTSUPP
	case *tcpip.ErrMessageTooLong:
		return syscall.EMSGSIZE
	case *tcpip.ErrInvalidEndpointState, *tcpip.ErrInvalidOptionValue, *tcpip.ErrInvalidPortRange:
		return syscall.EINVAL
	}
	return syscall.EIO
}

// opError dresses an error as package net does. io.EOF stays bare.
func (c *Conn) opError(op string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	if e, ok := err.(syscall.Errno); ok {
		err = os.NewSyscallError(op, e)
	}
	return &net.OpError{Op: op, Net: "tcp", Source: c.local, Addr: c.remote, Err: err}
}

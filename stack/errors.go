package stack

import (
	"reflect"
	"slices"
	"syscall"

	"gvisor.dev/gvisor/pkg/tcpip"

	"vnic.dev/vnic/internal/devmembase"
)

// errnos maps netstack's errors to Linux's error numbers. For other errors errno returns EIO.
var errnos = []struct {
	errno syscall.Errno
	errs  []tcpip.Error
}{
	{syscall.ECONNRESET, []tcpip.Error{&tcpip.ErrConnectionReset{}}},
	{syscall.ECONNREFUSED, []tcpip.Error{&tcpip.ErrConnectionRefused{}}},
	{syscall.ECONNABORTED, []tcpip.Error{&tcpip.ErrConnectionAborted{}, &tcpip.ErrAborted{}}},
	{syscall.ETIMEDOUT, []tcpip.Error{&tcpip.ErrTimeout{}}},
	{syscall.EHOSTUNREACH, []tcpip.Error{&tcpip.ErrHostUnreachable{}}},
	{syscall.EHOSTDOWN, []tcpip.Error{&tcpip.ErrHostDown{}}},
	{syscall.ENETUNREACH, []tcpip.Error{&tcpip.ErrNetworkUnreachable{}, &tcpip.ErrNoNet{}}},
	{syscall.EPIPE, []tcpip.Error{&tcpip.ErrClosedForSend{}}},
	{syscall.ENOTCONN, []tcpip.Error{&tcpip.ErrNotConnected{}}},
	{syscall.EADDRINUSE, []tcpip.Error{&tcpip.ErrPortInUse{}, &tcpip.ErrNoPortAvailable{}, &tcpip.ErrAlreadyBound{}}},
	{syscall.EADDRNOTAVAIL, []tcpip.Error{&tcpip.ErrBadLocalAddress{}, &tcpip.ErrBadAddress{}}},
	{syscall.EAGAIN, []tcpip.Error{&tcpip.ErrWouldBlock{}}},
	{syscall.ENOBUFS, []tcpip.Error{&tcpip.ErrNoBufferSpace{}}},
	{syscall.EPERM, []tcpip.Error{&tcpip.ErrNotPermitted{}, &tcpip.ErrBroadcastDisabled{}}},
	{syscall.EOPNOTSUPP, []tcpip.Error{&tcpip.ErrNotSupported{}}},
	{syscall.EMSGSIZE, []tcpip.Error{&tcpip.ErrMessageTooLong{}}},
	{syscall.EINVAL, []tcpip.Error{
		&tcpip.ErrInvalidEndpointState{}, &tcpip.ErrInvalidOptionValue{}, &tcpip.ErrInvalidPortRange{},
	}},
}

func errno(err tcpip.Error) syscall.Errno {
	same := func(e tcpip.Error) bool { return reflect.TypeOf(e) == reflect.TypeOf(err) }
	for _, e := range errnos {
		if slices.ContainsFunc(e.errs, same) {
			return e.errno
		}
	}
	return syscall.EIO
}

// opError wraps an error as package net does; it returns nil and io.EOF unchanged.
func (c *Conn) opError(op string, err error) error {
	return devmembase.OpError(op, err, c.local, c.remote)
}

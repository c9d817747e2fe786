package scm

import (
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// Pair makes a connected pair of stream sockets. The caller closes both.
func Pair() (a, b *net.UnixConn, err error) { return pair(unix.SOCK_STREAM) }

// MessagePair makes a connected pair of SOCK_SEQPACKET sockets, which preserve message boundaries. The caller closes
// both.
func MessagePair() (a, b *net.UnixConn, err error) { return pair(unix.SOCK_SEQPACKET) }

func pair(kind int) (a, b *net.UnixConn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	if a, err = Conn[*net.UnixConn](fds[0]); err != nil {
		return nil, nil, errors.Join(err, unix.Close(fds[1]))
	}
	if b, err = Conn[*net.UnixConn](fds[1]); err != nil {
		return nil, nil, errors.Join(err, a.Close())
	}
	return a, b, nil
}

// Conn makes a connection of type C from a socket's descriptor fd. It closes fd, also after an error.
func Conn[C net.Conn](fd int) (c C, err error) {
	f := os.NewFile(uintptr(fd), "socket")
	defer f.Close()
	conn, err := net.FileConn(f)
	if err != nil {
		return c, err
	}
	c, ok := conn.(C)
	if !ok {
		return c, errors.Join(fmt.Errorf("descriptor is a %T, not a %T", conn, c), conn.Close())
	}
	return c, nil
}

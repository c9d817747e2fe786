package scm

import (
	"errors"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// Pair makes a connected pair of stream sockets, both the caller's to close.
func Pair() (a, b *net.UnixConn, err error) { return pair(unix.SOCK_STREAM) }

// MessagePair makes a connected pair of sockets that keep the bounds of messages, both the caller's to close.
func MessagePair() (a, b *net.UnixConn, err error) { return pair(unix.SOCK_SEQPACKET) }

func pair(kind int) (a, b *net.UnixConn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	var conns [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socketpair")
		c, e := net.FileConn(f)
		err = errors.Join(err, e)
		conns[i] = c
		_ = f.Close()
	}
	if err != nil {
		for _, c := range conns {
			if c != nil {
				_ = c.Close()
			}
		}
		return nil, nil, err
	}
	return conns[0].(*net.UnixConn), conns[1].(*net.UnixConn), nil
}

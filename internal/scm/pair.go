package scm

import (
	"errors"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// Pair makes a connected pair of stream sockets, both the caller's to close.
func Pair() (a, b *net.UnixConn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
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

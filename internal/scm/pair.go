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
	var conns [2]*net.UnixConn
	var errs [2]error
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socketpair")
		var c net.Conn
		if c, errs[i] = net.FileConn(f); errs[i] == nil {
			conns[i] = c.(*net.UnixConn)
		}
		_ = f.Close()
	}
	if err := errors.Join(errs[0], errs[1]); err != nil {
		for _, c := range conns {
			if c != nil {
				_ = c.Close()
			}
		}
		return nil, nil, err
	}
	return conns[0], conns[1], nil
}

// Package sockfile makes the files of Unix sockets, and removes files that a dead process has left.
//
// The package is not API (README, Stability).
package sockfile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Mode is the mode of a socket that Bind makes, if the umask permits it: connect(2) needs the right to write
// (unix(7)), so only our user and root can connect.
const Mode = 0o600

// Bind makes a listening socket whose file is ours alone from its first moment on: fchmod sets the mode of the socket's
// own inode before bind, and Linux makes the file with this mode, less the umask (net/unix/af_unix.c, unix_bind_bsd).
// The file stays when the socket is closed.
func Bind(path string) (*net.UnixListener, error) {
	conf := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		e := c.Control(func(fd uintptr) { err = os.NewSyscallError("fchmod", unix.Fchmod(int(fd), Mode)) })
		return errors.Join(e, err)
	}}
	l, err := conf.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, err
	}
	u := l.(*net.UnixListener)
	u.SetUnlinkOnClose(false)
	return u, nil
}

// RemoveStale removes a socket's file at which no process listens. A missing file is no error; a socket that is in
// use, or cannot be tried, and a file that is no socket are errors. Errors may lack the file's name.
func RemoveStale(path string) error {
	st, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if p := (*fs.PathError)(nil); errors.As(err, &p) {
		return p.Err
	}
	if st.Mode().Type() != fs.ModeSocket {
		return errors.New("there is a file of this name, which is no socket: give another name, or remove it")
	}
	switch pid, err := Listening(path); {
	case err == nil && pid > 0:
		return fmt.Errorf("in use: process %d listens there: end it, or give another name", pid)
	case err == nil, errors.Is(err, unix.EAGAIN): // EAGAIN: its queue is full
		return errors.New("in use: somebody listens there: end that, or give another name")
	case errors.Is(err, unix.ECONNREFUSED):
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("a dead process has left it: %w", err)
		}
		return nil
	case errors.Is(err, unix.ENOENT):
		return nil
	default:
		return fmt.Errorf("there is a socket of this name already: %w", err)
	}
}

// Listening connects to a stream socket without waiting, and returns the id of the process that called listen(2), or
// 0 if it is unknown. The error ECONNREFUSED means that no process listens, EAGAIN that the socket's queue is full.
func Listening(path string) (pid int, err error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return 0, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		return 0, err
	}
	if c, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
		return int(c.Pid), nil
	}
	return 0, nil
}

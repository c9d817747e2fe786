package qemu

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/scm"
)

// backendSocket is where QEMU finds a backend of this process. QEMU passes no descriptors over a
// socket that it inherits (chardev/char-socket.c, "TODO SOCKET_ADDRESS_FD"), so it has to connect
// to a name. For vhost-user that is one in the abstract namespace, which is not in the file system
// and is gone with the socket. Of a vfio-user socket QEMU takes a path only: that is
// /proc/self/fd/N, which is a socket that has no other name any more. Anybody may connect to an
// abstract name; only the QEMU that was started is let in.
type backendSocket struct {
	name      string   // vhost-user
	file      *os.File // vfio-user
	listener  *net.UnixListener
	connected func(*net.UnixConn)
	done      chan struct{} // closed when accept has ended; nil when it was not started
}

func newBackendSocket(connected func(*net.UnixConn), vfioUser bool) (*backendSocket, error) {
	b := &backendSocket{connected: connected}
	var err error
	if vfioUser {
		b.listener, b.file, err = listenUnnamed()
	} else {
		b.name = "vnic-" + rand.Text()
		b.listener, err = net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: "@" + b.name})
	}
	if err != nil {
		return nil, fmt.Errorf("backend's socket: %w", err)
	}
	return b, nil
}

// listenUnnamed listens on a socket that has a path for a moment only. The file leads to it:
// unix(7) connects to what a path resolves to, and /proc/self/fd/N resolves to what is open there.
func listenUnnamed() (*net.UnixListener, *os.File, error) {
	dir, err := os.MkdirTemp("", "vnic-")
	if err != nil {
		return nil, nil, err
	}
	l, f, err := listenIn(dir)
	if rerr := os.RemoveAll(dir); err == nil && rerr != nil {
		return nil, nil, errors.Join(rerr, l.Close(), f.Close())
	}
	return l, f, err
}

func listenIn(dir string) (*net.UnixListener, *os.File, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = d.Close() }()
	path := filepath.Join(fdPath(int(d.Fd())), "s") // a socket's path has 107 bytes at most, a directory's any number
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path})
	if err != nil {
		return nil, nil, err
	}
	l.SetUnlinkOnClose(false) // it is gone long before
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, errors.Join(err, l.Close())
	}
	return l, os.NewFile(uintptr(fd), "vfio-user"), nil
}

// accept waits for the process pid to connect.
func (b *backendSocket) accept(pid int) {
	defer close(b.done)
	for {
		conn, err := b.listener.AcceptUnix()
		if err != nil {
			return
		}
		if peer(conn) == pid {
			_ = b.listener.Close()
			b.connected(conn)
			return
		}
		_ = conn.Close()
	}
}

// peer gives the process at the other end.
func peer(conn *net.UnixConn) int {
	if c, err := scm.Peer(conn); err == nil {
		return int(c.Pid)
	}
	return -1
}

// close may be called again.
func (b *backendSocket) close() {
	_ = b.listener.Close()
	if b.file != nil {
		_ = b.file.Close()
	}
	if b.done != nil {
		<-b.done
	}
}

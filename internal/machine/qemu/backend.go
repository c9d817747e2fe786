package qemu

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/scm"
)

// backendSocket is the socket at which QEMU connects to a backend in this process. QEMU does not
// pass descriptors over a socket that it inherits (chardev/char-socket.c, "TODO
// SOCKET_ADDRESS_FD"), so it must connect to a name. For vhost-user this is a name in the abstract
// namespace, which is not in the file system and vanishes with the socket. For vfio-user QEMU
// accepts only a path: this is /proc/self/fd/N of a socket that has no other name any more. Any
// process may connect to an abstract name, but only the QEMU started here is accepted.
type backendSocket struct {
	name      string   // for vhost-user
	file      *os.File // for vfio-user
	listener  *net.UnixListener
	connected func(*net.UnixConn)
	accepting sync.WaitGroup // accept runs
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

// listenUnnamed listens on a socket whose path it removes again. The returned file leads to the
// socket: connect(2) resolves a path, and /proc/self/fd/N resolves to the open file.
func listenUnnamed() (l *net.UnixListener, f *os.File, err error) {
	dir, err := os.MkdirTemp("", "vnic-")
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if rerr := os.RemoveAll(dir); err == nil && rerr != nil {
			err = errors.Join(rerr, l.Close(), f.Close())
		}
	}()
	d, err := os.Open(dir)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = d.Close() }()
	path := filepath.Join(fdPath(int(d.Fd())), "s") // a socket's path has at most 107 bytes; dir's may be longer
	if l, err = net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path}); err != nil {
		return nil, nil, err
	}
	l.SetUnlinkOnClose(false) // the path is removed long before
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, errors.Join(err, l.Close())
	}
	return l, os.NewFile(uintptr(fd), "vfio-user"), nil
}

// accept waits until process pid connects, or the socket is closed. It closes the connections of other processes, and
// then the socket, and passes the connection of pid to connected.
func (b *backendSocket) accept(pid int) {
	for {
		conn, err := b.listener.AcceptUnix()
		if err != nil {
			return
		}
		if peer, err := scm.Peer(conn); err == nil && int(peer.Pid) == pid {
			_ = b.listener.Close()
			b.connected(conn)
			return
		}
		_ = conn.Close()
	}
}

// close may be called more than once.
func (b *backendSocket) close() {
	_ = b.listener.Close()
	if b.file != nil {
		_ = b.file.Close()
	}
	b.accepting.Wait()
}

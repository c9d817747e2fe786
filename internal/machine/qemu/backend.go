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

// backendSocket is where QEMU connects to a backend in this process. QEMU passes no descriptors over an
// inherited socket (chardev/char-socket.c, "TODO SOCKET_ADDRESS_FD"). For vhost-user it is an abstract name;
// vfio-user needs a path: /proc/self/fd/N of a socket without another name. Only the QEMU started here is
// accepted.
type backendSocket struct {
	name      string   // for vhost-user
	file      *os.File // for vfio-user
	listener  *net.UnixListener
	connected func(*net.UnixConn)
	accepting sync.WaitGroup // waits for accept
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

// listenUnnamed listens on a socket whose path it removes. f leads to the socket, as /proc/self/fd/N.
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
	path := filepath.Join(fdPath(int(d.Fd())), "s") // at most 107 bytes
	if l, err = net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path}); err != nil {
		return nil, nil, err
	}
	l.SetUnlinkOnClose(false) // removed before
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, errors.Join(err, l.Close())
	}
	return l, os.NewFile(uintptr(fd), "vfio-user"), nil
}

// accept closes the listener at the first connection of process pid, and passes that connection to connected. It closes
// other processes' connections. It returns after that, or when close closes the listener.
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

// close closes the listener and file, and waits until accept has returned. It may be called more than once.
func (b *backendSocket) close() {
	_ = b.listener.Close()
	if b.file != nil {
		_ = b.file.Close()
	}
	b.accepting.Wait()
}

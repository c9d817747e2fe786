package qemu

import (
	"crypto/rand"
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// backendSocket is where QEMU finds a vhost-user backend of this process. QEMU passes no descriptors over a socket that
// it inherits (chardev/char-socket.c, "TODO SOCKET_ADDRESS_FD"), so it has to connect to a name: one in the abstract
// namespace, which is not in the file system and is gone with the socket. Anybody may connect to such a name; only the
// QEMU that was started is let in.
type backendSocket struct {
	name      string
	listener  *net.UnixListener
	connected func(*net.UnixConn)
	done      chan struct{} // closed when accept has ended; nil when it was not started
}

func newBackendSocket(connected func(*net.UnixConn)) (*backendSocket, error) {
	name := "vnic-" + rand.Text()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: "@" + name})
	if err != nil {
		return nil, fmt.Errorf("vhost-user socket: %w", err)
	}
	return &backendSocket{name: name, listener: l, connected: connected}, nil
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
	raw, err := conn.SyscallConn()
	if err != nil {
		return -1
	}
	pid := -1
	_ = raw.Control(func(fd uintptr) {
		if c, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(c.Pid)
		}
	})
	return pid
}

// close may be called again.
func (b *backendSocket) close() {
	_ = b.listener.Close()
	if b.done != nil {
		<-b.done
	}
}

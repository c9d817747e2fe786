package scm

import (
	"net"

	"golang.org/x/sys/unix"
)

// Peer returns the credentials of the process that made the other end of the connection: by connect(2), by listen(2),
// or by socketpair(2) (SO_PEERCRED, unix(7)).
func Peer(conn *net.UnixConn) (peer *unix.Ucred, err error) {
	err = Control(conn, func(fd int) (err error) {
		peer, err = unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		return err
	})
	return peer, err
}

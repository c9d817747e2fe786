package scm

import (
	"net"

	"golang.org/x/sys/unix"
)

// Peer returns the process that was at the other end when the connection was made (SO_PEERCRED, unix(7)).
func Peer(conn *net.UnixConn) (peer *unix.Ucred, err error) {
	err = Control(conn, func(fd int) (err error) {
		peer, err = unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		return err
	})
	return peer, err
}

package scm

import (
	"errors"
	"net"

	"golang.org/x/sys/unix"
)

// Peer says who was at the other end when the connection was made (SO_PEERCRED, unix(7)).
func Peer(conn *net.UnixConn) (*unix.Ucred, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	var peer *unix.Ucred
	e := raw.Control(func(fd uintptr) {
		peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	return peer, errors.Join(e, err)
}

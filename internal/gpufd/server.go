package gpufd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/access"
	"vnic.dev/vnic/internal/scm"
)

// Bounds of the descriptors that a Server has sent and that were not received, to one user and in all.
const (
	maxOfUser = 64
	maxInAll  = 256
)

const maxText = 200

// Server sends descriptors of GPUs' memory to other processes.
type Server struct {
	// Note is called with a line for vnic's user when a process of a user is refused for the first time, for 16
	// users at most. Set it before Serve.
	Note func(format string, args ...any)

	mu       sync.Mutex // held while a connection is served; guards the fields below
	unread   []unread
	reported access.Told
}

// unread is a connection whose descriptor may not have been received yet.
type unread struct {
	conn *net.UnixConn
	uid  uint32
}

// Serve sends a descriptor of memory to each process that connects to l and that rule admits, within the
// bounds of unreceived descriptors, until ctx ends or l is closed. A process that gets none is sent a text
// with the reason.
func (s *Server) Serve(ctx context.Context, l *net.UnixListener, memory int, rule access.Rule) {
	access.Accept(ctx, l, func(conn *net.UnixConn) { s.give(conn, memory, rule) })
}

func (s *Server) give(conn *net.UnixConn, memory int, rule access.Rule) {
	s.mu.Lock()
	defer s.mu.Unlock()
	peer, why := rule.Check(conn)
	if why == "" {
		why = s.full(peer.Uid)
	}
	if why == "" {
		err := send(conn, memory)
		if err == nil {
			s.unread = append(s.unread, unread{conn, peer.Uid})
			return
		}
		if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) {
			_ = conn.Close()
			return
		}
		why = err.Error()
	}
	if s.reported.First(peer.Uid) {
		s.Note("process %d of user %d is refused the GPU's memory: %s", peer.Pid, peer.Uid, why)
	}
	_ = message(conn, []byte(why[:min(len(why), maxText)]), nil)
	_ = conn.Close()
}

// full closes the connections whose descriptors are no longer in flight, and describes which bound a further
// descriptor for the user would exceed; "": none. Call it with mu held.
func (s *Server) full(uid uint32) string {
	left, ofUser := s.unread[:0], 0
	for _, u := range s.unread {
		if received(u.conn) {
			_ = u.conn.Close()
			continue
		}
		left = append(left, u)
		if u.uid == uid {
			ofUser++
		}
	}
	clear(s.unread[len(left):])
	s.unread = left
	switch {
	case ofUser >= maxOfUser:
		return fmt.Sprintf("%d connections of this user have not received theirs", ofUser)
	case len(left) >= maxInAll:
		return fmt.Sprintf("%d connections have not received theirs", len(left))
	}
	return ""
}

// Close closes the connections that s has kept. Call it after Serve has returned.
func (s *Server) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, u := range s.unread {
		_ = u.conn.Close()
	}
	s.unread = nil
}

func send(conn *net.UnixConn, memory int) error {
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", memory), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("opening it: %w", err)
	}
	defer unix.Close(fd)
	if err := message(conn, []byte{0}, unix.UnixRights(fd)); err != nil {
		return err
	}
	_ = conn.CloseWrite()
	return nil
}

// message sends a connection's only message. It does not wait, because the socket has room.
func message(conn *net.UnixConn, b, oob []byte) error {
	return scm.Control(conn, func(fd int) error {
		return unix.Sendmsg(fd, b, oob, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	})
}

func received(conn *net.UnixConn) bool {
	n := 0
	err := scm.Control(conn, func(fd int) (err error) {
		n, err = unix.IoctlGetInt(fd, unix.SIOCOUTQ)
		return err
	})
	return err == nil && n == 0
}

package gpufd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/cmd/vnic/internal/access"
)

// Bounds of descriptors that were sent and not received.
const (
	maxOfUser = 64
	maxInAll  = 256
)

// maxText is the longest message without a descriptor.
const maxText = 200

// Server gives descriptors of GPUs' memory away.
type Server struct {
	// Note says what a user should know. Set before Serve.
	Note func(format string, args ...any)

	mu     sync.Mutex // one peer at a time
	unread []unread
	told   access.Told
}

// unread is a connection whose descriptor may not have been received yet.
type unread struct {
	conn *net.UnixConn
	uid  uint32
}

// pause is how long a socket waits when there are no descriptors left.
const pause = time.Second

// Serve gives memory to those who connect to l and may, until ctx ends.
func (s *Server) Serve(ctx context.Context, l *net.UnixListener, memory int, rule access.Rule) {
	defer context.AfterFunc(ctx, func() { _ = l.SetDeadline(time.Unix(1, 0)) })() // long past
	for {
		conn, err := l.AcceptUnix()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = conn.Close()
			}
			return
		case err != nil:
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
		default:
			s.give(conn, memory, rule)
		}
	}
}

// give serves one peer, and never waits for it.
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
		if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) { // it has gone
			_ = conn.Close()
			return
		}
		why = err.Error()
	}
	if s.told.First(peer.Uid) {
		s.Note("process %d of user %d is refused the GPU's memory: %s", peer.Pid, peer.Uid, why)
	}
	_ = message(conn, []byte(why[:min(len(why), maxText)]), nil)
	_ = conn.Close()
}

// full says why there is no more for a user. It closes the connections whose descriptors were received.
func (s *Server) full(uid uint32) string {
	left, his := s.unread[:0], 0
	for _, u := range s.unread {
		if received(u.conn) {
			_ = u.conn.Close()
			continue
		}
		left = append(left, u)
		if u.uid == uid {
			his++
		}
	}
	clear(s.unread[len(left):])
	s.unread = left
	switch {
	case his >= maxOfUser:
		return fmt.Sprintf("%d connections of this user have not received theirs", his)
	case len(left) >= maxInAll:
		return fmt.Sprintf("%d connections have not received theirs", len(left))
	}
	return ""
}

// Close ends the connections that are kept. Serve has returned.
func (s *Server) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, u := range s.unread {
		_ = u.conn.Close()
	}
	s.unread = nil
}

// send sends a descriptor of the memory, of an open file of its own, and ends our side.
func send(conn *net.UnixConn, memory int) error {
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", memory), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("opening it: %w", err)
	}
	defer unix.Close(fd)
	if err := message(conn, []byte{0}, unix.UnixRights(fd)); err != nil {
		return err
	}
	_ = conn.CloseWrite() // at worst it is gone, and that is seen when the next one comes
	return nil
}

// message sends the only message of a connection, for which there is room.
func message(conn *net.UnixConn, b, oob []byte) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	e := raw.Control(func(fd uintptr) {
		err = unix.Sendmsg(int(fd), b, oob, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	})
	return errors.Join(e, err)
}

// received says whether nothing that was sent is under way, as the peer has read it, or closed its end.
func received(conn *net.UnixConn) bool {
	raw, err := conn.SyscallConn()
	if err != nil {
		return true
	}
	n := 0
	e := raw.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) })
	return e != nil || err == nil && n == 0
}

package vfiouser

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/peer"
	"vnic.dev/vnic/internal/scm"
)

// session is one connection, used only by the goroutine of Serve.
type session struct {
	conn
	dev   Device
	space *dma.Space
	log   *slog.Logger
	stop  <-chan struct{} // closed when the context of Serve ends
	msg   message

	info           Info
	negotiated     bool
	warnedUnshared bool // dmaMap has logged that memory came without a descriptor
	refusals       peer.Refusals
}

func newSession(s *Server, sock *net.UnixConn, over <-chan struct{}) *session {
	info := s.dev.Info()
	info.Regions = info.Regions[:min(len(info.Regions), NumRegions)]
	info.IRQs = info.IRQs[:min(len(info.IRQs), NumIRQs)]
	ses := &session{
		conn: conn{sock: scm.Socket{UnixConn: sock, MaxFDs: MaxFDs, Bad: ErrBadMessage}},
		dev:  s.dev, space: s.space, log: s.log, stop: over, info: info,
		refusals: peer.Refusals{Log: s.log, Protocol: "vfio-user"},
	}
	ses.msg.fds.Discard = s.space.Discard
	peer.WatchMemory(s.space, sock, s.log)
	return ses
}

// qemuTimeout is how long QEMU waits for a reply by default (vfio-user-pci's x-msg-timeout). vnic starts QEMU with
// qemuTimeout.Here() instead.
const qemuTimeout = limits.QEMUReply

// serveOne receives and handles one message, and answers it if it wants a reply. If serveOne returns an error, the
// connection ends.
func (s *session) serveOne() error {
	m := &s.msg
	defer m.fds.Close()
	if err := s.receive(m); err != nil {
		return err
	}
	if !s.negotiated && m.Command != CmdVersion {
		err := fmt.Errorf("%v before VERSION: %w", m.Command, ErrBadMessage)
		s.fail(m)
		return err
	}
	s.beginReply()
	ru, err := ruleFor(m)
	if err == nil {
		var start time.Time
		if ru.slow {
			start = time.Now()
		}
		err = ru.handle(s, m)
		if ru.slow && time.Since(start) > qemuTimeout.Here() {
			s.log.Error("a vfio-user request took longer than QEMU waits", "request", fmt.Sprint(m.Command), "took",
				time.Since(start))
		}
	}
	if err != nil {
		err = fmt.Errorf("%v: %w", m.Command, err)
	}
	switch {
	case errors.Is(err, ErrBadMessage), errors.Is(err, dma.ErrBlocked):
		s.fail(m)
		return err
	case err != nil:
		s.refused(m, err)
		if m.Flags&FlagNoReply != 0 {
			return nil
		}
		return s.refuse(m, errno(err))
	case m.Flags&FlagNoReply != 0:
		return nil
	}
	return s.reply(m)
}

// fail answers a message with an error, unless it wants no reply.
func (s *session) fail(m *message) {
	if m.Flags&FlagNoReply == 0 {
		_ = s.refuse(m, unix.EINVAL)
	}
}

func errno(err error) unix.Errno {
	var e unix.Errno
	switch {
	case errors.As(err, &e) && e != 0:
		return e
	case errors.Is(err, dma.ErrBadFile), errors.Is(err, dma.ErrBounds):
		return unix.EINVAL
	case errors.Is(err, dma.ErrUnmapped), errors.Is(err, dma.ErrAccess):
		return unix.EFAULT
	}
	return unix.EIO
}

// refused logs a failure that does not end the connection, up to peer.MaxRefusalLogs of them in a connection.
func (s *session) refused(m *message, err error) {
	level := slog.LevelWarn
	if m.Command == CmdDMAMap {
		level = slog.LevelError // the device cannot use that memory
	}
	s.refusals.Refused(level, fmt.Sprint(m.Command), "posted", m.Flags&FlagNoReply != 0, "error", err)
}

func (s *session) reset(*message) error {
	if !s.info.Reset {
		return fmt.Errorf("the device has no reset: %w", unix.ENOTSUP)
	}
	return s.dev.Reset()
}

func (s *session) end() {
	s.dev.Disconnected()
	if err := s.space.Replace(nil); err != nil {
		s.log.Error("guest memory was not unmapped", "error", err)
	}
	peer.Unwatch(s.space)
	s.refusals.End()
}

// drainTimeout, times limits.Slow, limits each wait for a client when Serve ends: until the socket has room for the
// reply that is being sent, for the rest of a message (conn.rest), and in drain, there once for all replies.
var drainTimeout = limits.Drain

// drain reads the requests that the client has already sent, and answers each one that wants a reply with an error:
// QEMU would wait for qemuTimeout with its lock held. After a message that was received or sent only in part, it only
// discards what has arrived. Also, closing a socket with unread data resets the connection, which QEMU 11.1 does not
// survive (util/error.c, an assertion of error_setv; measured).
func (s *session) drain() {
	if s.sock.SetDeadline(time.Now().Add(drainTimeout.Here())) != nil || s.sock.CloseRead() != nil {
		return
	}
	defer s.discard()
	for !s.broken { // ends: after CloseRead no more bytes arrive
		m := &s.msg
		err := s.receive(m)
		m.fds.Close()
		if err != nil {
			return
		}
		if m.Flags&FlagNoReply == 0 && s.refuse(m, unix.ESHUTDOWN) != nil {
			return
		}
	}
}

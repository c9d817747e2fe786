package vhostuser

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime/debug"
	"sync/atomic"
	"time"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/peer"
)

// Backend serves one Device over vhost-user connections, one after another.
type Backend struct {
	dev   Device
	space *dma.Space
	log   *slog.Logger
	busy  atomic.Bool

	unaccepted atomic.Pointer[string] // result of Unaccepted; nil until a connection has ended
}

// NewBackend returns a Backend for dev. Only the Backend may change space, which holds the memory that the
// frontend shares during a connection. log may be nil.
func NewBackend(dev Device, space *dma.Space, log *slog.Logger) *Backend {
	return &Backend{dev: dev, space: space, log: cmp.Or(log, slog.New(slog.DiscardHandler))}
}

// Serve serves the device on sock, which it closes, until the frontend hangs up (nil; io.ErrUnexpectedEOF within
// a message), ctx ends (its cause), or there is an error, such as a *dma.FaultError, ErrBadMessage or
// ErrUnsupported. Before it returns, it stops the queues, calls Disconnected, and empties the space. While another
// Serve of the same Backend runs, it only closes sock and returns ErrBusy.
func (b *Backend) Serve(ctx context.Context, sock *net.UnixConn) error {
	defer sock.Close()
	if !b.busy.CompareAndSwap(false, true) {
		return ErrBusy
	}
	defer b.busy.Store(false)
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // the device may access guest memory on this goroutine

	s := newSession(b, sock)
	b.log.Info("vhost-user frontend connected")
	err, cause := peer.Serve(ctx, b.space, func() {
		_ = sock.SetDeadline(time.Unix(1, 0)) // long past: ends the present read or write, and later ones
	}, s.serveOne)
	s.end()
	if cause != nil {
		err = cause
	}
	offer := ""
	if err == nil && s.asked && !s.accepted {
		offer = s.offer()
	}
	b.unaccepted.Store(&offer)
	b.log.Info("vhost-user frontend disconnected")
	return err
}

// Unaccepted describes what the last ended connection offered, the number of queues and the features, if its frontend
// asked for the features and hung up before a SET_FEATURES succeeded; else it returns "". QEMU hangs up so if the guest
// uses a feature that the device no longer offers, or more queues (net/vhost-user.c, vhost_user_start).
func (b *Backend) Unaccepted() string {
	if p := b.unaccepted.Load(); p != nil {
		return *p
	}
	return ""
}

// serveOne receives and handles one message, and sends its reply, or an acknowledgement if the frontend wants one. If
// serveOne returns an error, the connection ends.
func (s *session) serveOne() error {
	m := &s.msg
	m.Header = Header{}
	defer m.fds.Close()
	var ru *rule
	err := s.conn.receive(m, func(h *Header) (err error) {
		ru, err = ruleFor(h, s.offered)
		return err
	})
	if err != nil {
		if errors.Is(err, ErrUnsupported) && s.ackDue(m) {
			s.fail(m) // the frontend waits for an acknowledgement
		}
		return err
	}
	var reply []byte
	due := s.ackDue(m)
	if err = checkFDs(m, ru); err == nil {
		reply, err = ru.handle(s, m)
	}
	due = (due || s.ackDue(m)) && ru.answer != ownReply // SET_PROTOCOL_FEATURES may turn on REPLY_ACK
	switch {
	case err == nil && ru.answer == ownReply:
		return s.reply(m, reply)
	case err == nil && due:
		return s.ack(m, 0)
	case err == nil:
		return nil
	case ru.answer == ownReply:
		return err
	case errors.Is(err, ErrBadMessage), errors.Is(err, ErrUnsupported), errors.Is(err, dma.ErrBlocked):
		if due {
			s.fail(m)
		}
		return err
	case due:
		s.refused(m, err)
		return s.ack(m, 1)
	case ru.answer == mustSucceed:
		return err
	}
	s.refused(m, err)
	return nil
}

// ackDue reports whether the frontend has negotiated acknowledgements and wants one for m (vhost-user.rst,
// "VHOST_USER_PROTOCOL_F_REPLY_ACK").
func (s *session) ackDue(m *message) bool {
	return m.Flags&FlagNeedReply != 0 && s.protocol&ProtocolReplyAck != 0
}

func (s *session) reply(m *message, body []byte) error {
	return s.conn.send(Header{m.Request, Version | FlagReply, uint32(len(body))}, body, nil)
}

func (s *session) ack(m *message, result uint64) error {
	return s.reply(m, le.AppendUint64(nil, result))
}

// fail answers a message with a failure.
func (s *session) fail(m *message) { _ = s.ack(m, 1) }

// refused logs up to peer.MaxRefusalLogs failures in a connection, and counts the others. After it has logged an
// ErrMemory, it only counts further ones until the regions change.
func (s *session) refused(m *message, err error) {
	level := slog.LevelWarn
	if errors.Is(err, ErrMemory) {
		if s.unreached { // QEMU sends such requests for each ring
			s.refusals.Repeated()
			return
		}
		s.unreached = true
		level = slog.LevelError // the queues do not run without that memory
	}
	s.refusals.Refused(level, fmt.Sprint(m.Request), "error", err)
}

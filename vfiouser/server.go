package vfiouser

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"runtime/debug"
	"sync/atomic"
	"time"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/peer"
)

// Server serves one Device over vfio-user connections, one after another.
type Server struct {
	dev   Device
	space *dma.Space
	log   *slog.Logger
	busy  atomic.Bool
}

// NewServer returns a Server for dev. Only the Server may change space, which holds the ranges that the client
// maps during a connection. log may be nil.
func NewServer(dev Device, space *dma.Space, log *slog.Logger) *Server {
	return &Server{dev: dev, space: space, log: cmp.Or(log, slog.New(slog.DiscardHandler))}
}

// Serve serves the device on sock, which it closes, until the client hangs up (nil; io.ErrUnexpectedEOF within
// a message), ctx ends (its cause), or there is an error, such as a *dma.FaultError or ErrBadMessage. Before it
// returns, it calls Disconnected, and empties the space. While another Serve of the same Server runs, it only
// closes sock and returns ErrBusy.
func (s *Server) Serve(ctx context.Context, sock *net.UnixConn) error {
	defer sock.Close()
	if !s.busy.CompareAndSwap(false, true) {
		return ErrBusy
	}
	defer s.busy.Store(false)
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // the device may access guest memory on this goroutine

	ses := newSession(s, sock, ctx.Done())
	err, cause := peer.Serve(ctx, s.space, func() {
		// A wait for the next message ends now; a reply that is being sent has drainTimeout.
		_ = sock.SetReadDeadline(time.Unix(1, 0))
		_ = sock.SetWriteDeadline(time.Now().Add(drainTimeout.Here()))
	}, ses.serveOne)
	hungUp := err == nil || errors.Is(err, io.ErrUnexpectedEOF) || ses.peerClosed()
	if cause != nil {
		err = cause
	}
	ses.end()
	if hungUp {
		s.log.Info("vfio-user client disconnected")
		return err
	}
	ses.drain()
	// QEMU 11.1 does not connect again (docs/specs/gve.md, 9).
	s.log.Error("the guest has lost a device: reads of its registers give all ones, writes go nowhere, its driver "+
		"times out and gives up; its QEMU goes on, does not connect again, and aborts when the guest reboots: end that "+
		"QEMU, and start it anew once vnic serves again (this machine, and vnic itself, need no restart)", "cause", err)
	return err
}

package vhostuser

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/dma"
)

// ListenAndServe serves a device to the frontends that connect to a Unix socket at path, one after another,
// until ctx ends (nil) or the socket fails; then it removes the socket. The socket's mode is 0600. log may be
// nil.
func ListenAndServe(ctx context.Context, path string, d Device, space *dma.Space, log *slog.Logger) error {
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	// A socket's file gets the mode that the socket has when it is bound, less the umask (Linux net/unix/af_unix.c,
	// unix_bind_bsd).
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		return errors.Join(c.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) }), err)
	}}
	listener, err := lc.Listen(ctx, "unix", path)
	if err != nil {
		return err
	}
	defer func() { _ = listener.Close() }() // also removes the socket
	// A deadline, not Close, ends Accept: after a Close in another goroutine the descriptor might still be open when
	// ListenAndServe returns.
	defer context.AfterFunc(ctx, func() { _ = listener.(*net.UnixListener).SetDeadline(time.Unix(1, 0)) })()
	log.Info("listening", "socket", path)
	backend := NewBackend(d, space, log)
	for {
		conn, err := listener.Accept()
		if ctx.Err() != nil {
			if err == nil {
				_ = conn.Close()
			}
			return nil
		}
		if err != nil {
			return err
		}
		if err := backend.Serve(ctx, conn.(*net.UnixConn)); err != nil && ctx.Err() == nil {
			log.Error("connection", "err", err)
		}
	}
}

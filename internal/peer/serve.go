package peer

import (
	"context"
	"errors"
	"io"
	"sync"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/dma"
)

// Serve calls next, which serves one message, until it returns an error. err is that error, and nil
// if it means that the peer hung up between two messages. It serves nobody when too many
// descriptors had to be kept (dma.Space.DiscardErr), now or before.
//
// Once ctx ends or memory of the space faults, Serve calls interrupt on a goroutine of its own: it
// has next return soon. cause is then why: the cause of ctx, or a *dma.FaultError.
func Serve(ctx context.Context, space *dma.Space, interrupt func(), next func() error) (err, cause error) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		select {
		case <-ctx.Done():
		case <-space.Faulted():
			cause = space.FaultErr()
		case <-done:
			return
		}
		interrupt()
	})
	for err = space.DiscardErr(); err == nil; {
		if err = next(); err == nil {
			err = space.DiscardErr()
		}
	}
	close(done)
	wg.Wait()
	if errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE) {
		err = nil // hung up, perhaps with a reply of ours unread
	}
	if ctx.Err() != nil {
		cause = context.Cause(ctx)
	}
	return err, cause
}

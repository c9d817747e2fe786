package peer

import (
	"context"
	"errors"
	"io"
	"sync"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/dma"
)

// Serve calls next, which serves one message, until next or dma.Space.DiscardErr returns an error. err is that
// error, or nil if it means that the peer hung up (io.EOF, ECONNRESET, EPIPE).
//
// When ctx ends or memory of the space faults meanwhile, Serve calls interrupt on another goroutine. The function
// interrupt must make next return soon. cause is the cause of ctx if ctx has ended, else the *dma.FaultError of the
// fault, else nil.
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
		err = nil // the peer hung up, perhaps without reading a reply
	}
	if ctx.Err() != nil {
		cause = context.Cause(ctx)
	}
	return err, cause
}

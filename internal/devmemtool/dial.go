package devmemtool

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"vnic.dev/vnic/devmem"
)

const dialPause = 100 * time.Millisecond

// DialAgain calls dial again while the peer refuses, resets or does not answer the connection, or cannot be
// reached, until ctx ends: guests' programs start in no certain order. Other errors of dial end it. Before it
// dials for the second time, it calls waits, which may be nil, with the error.
func DialAgain(ctx context.Context, dial func(ctx context.Context) (devmem.Conn, error),
	waits func(err error)) (devmem.Conn, error) {
	var last error
	for {
		c, err := dial(ctx)
		if err == nil {
			return c, nil
		}
		if last != nil && ctx.Err() != nil {
			err = last
		}
		switch {
		case ctx.Err() != nil:
			return nil, fmt.Errorf("again and again: %w (%w)", err, context.Cause(ctx))
		case !notYet(err):
			return nil, err
		case last == nil && waits != nil:
			waits(err)
		}
		last = err
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("again and again: %w (%w)", err, context.Cause(ctx))
		case <-time.After(dialPause):
		}
	}
}

func notYet(err error) bool {
	return slices.ContainsFunc([]syscall.Errno{syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.EHOSTUNREACH,
		syscall.EHOSTDOWN,
		syscall.ENETUNREACH, syscall.ETIMEDOUT}, func(e syscall.Errno) bool { return errors.Is(err, e) })
}

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

// dialPause is between two tries.
const dialPause = 100 * time.Millisecond

// DialAgain has dial try again while no program listens there yet, until ctx ends: programs of several guests start in
// no order. An error that is something else is dial's. waits is told of the first try that was in vain; it may be nil.
func DialAgain(ctx context.Context, dial func(ctx context.Context) (devmem.Conn, error),
	waits func(err error)) (devmem.Conn, error) {
	var last error // that names more than the time that is over
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

// notYet says whether an error means that no program listens there yet.
func notYet(err error) bool {
	return slices.ContainsFunc([]syscall.Errno{syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.EHOSTUNREACH,
		syscall.EHOSTDOWN,
		syscall.ENETUNREACH, syscall.ETIMEDOUT}, func(e syscall.Errno) bool { return errors.Is(err, e) })
}

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

// dialPause is the pause between two attempts.
const dialPause = 100 * time.Millisecond

// DialAgain calls dial again while no program listens yet, until ctx ends: the programs of several
// guests start in no certain order. It returns dial's other errors at once. Before it tries a second
// time, it calls waits, which may be nil, with the error of the first attempt.
func DialAgain(ctx context.Context, dial func(ctx context.Context) (devmem.Conn, error),
	waits func(err error)) (devmem.Conn, error) {
	var last error // explains more than the error of ctx
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

// notYet reports whether an error may mean that no program listens yet.
func notYet(err error) bool {
	return slices.ContainsFunc([]syscall.Errno{syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.EHOSTUNREACH,
		syscall.EHOSTDOWN,
		syscall.ENETUNREACH, syscall.ETIMEDOUT}, func(e syscall.Errno) bool { return errors.Is(err, e) })
}

package devmemtool

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/testkit"
)

func TestDialAgain(t *testing.T) {
	refused := fmt.Errorf("dial: %w", syscall.ECONNREFUSED)
	type try = func(context.Context) (devmem.Conn, error)
	tries, reported := 0, 0
	waits := func(err error) {
		testkit.ErrorIs(t, err, syscall.ECONNREFUSED)
		reported++
	}
	testkit.Must(DialAgain(t.Context(), try(func(context.Context) (devmem.Conn, error) {
		if tries++; tries < 3 {
			return nil, refused
		}
		return nil, nil
	}), waits))(t)
	testkit.Equal(t, "tries", tries, 3)
	testkit.Equal(t, "told", reported, 1)

	other := errors.New("something else")
	_, err := DialAgain(t.Context(), func(context.Context) (devmem.Conn, error) { return nil, other }, waits)
	testkit.Equal(t, "error", err, other)

	ctx, cancel := context.WithCancelCause(t.Context())
	_, err = DialAgain(ctx, func(ctx context.Context) (devmem.Conn, error) {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, refused
	}, func(error) { cancel(errors.New("time is over")) })
	testkit.ErrorSays(t, err, "again and again: dial: connection refused (time is over)")
	testkit.Equal(t, "told", reported, 1)
}

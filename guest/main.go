package guest

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
)

// Main is a program's main function: it opens the device (Open), calls f with it, closes it, and ends the process. The
// status is 1, with the error on stderr, if the device cannot be opened, f fails, or else Close fails; otherwise it is
// 0. SIGINT and SIGTERM end ctx and close the device.
func Main(f func(ctx context.Context, d *Device) error) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, Open, f); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", filepath.Base(os.Args[0]), err)
		os.Exit(1)
	}
	os.Exit(0)
}

func run(ctx context.Context, open func(context.Context) (*Device, error),
	f func(context.Context, *Device) error) (err error) {
	d, err := open(ctx)
	if err != nil {
		return err
	}
	defer func() {
		cerr := d.Close()
		switch {
		case ctx.Err() != nil && err != nil:
			err = fmt.Errorf("interrupted: %w", err)
		case err == nil:
			err = cerr
		}
	}()
	defer context.AfterFunc(ctx, func() { _ = d.Close() })()
	return f(ctx, d)
}

package live

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"vnic.dev/vnic/internal/report/show"
	"vnic.dev/vnic/internal/report/stat"
)

// Watch paints last, a snapshot of a vnic, and then once a second the rates since the snapshot before, until ctx or
// that vnic ends. It writes to notes that the vnic has ended.
func Watch(ctx context.Context, w *show.Repaint, notes io.Writer, last *stat.Snapshot) error {
	if err := w.Paint(func(w io.Writer) error { return stat.Table(w, nil, last) }); err != nil {
		return err
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		now, err := stat.Read(ctx, last.PID)
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, stat.ErrNone) {
			fmt.Fprintf(notes, "vnic %d has ended\n", last.PID)
			return nil
		}
		if err == nil {
			err = w.Paint(func(w io.Writer) error { return stat.Table(w, last, now) })
		}
		if err != nil {
			return err
		}
		last = now
	}
}

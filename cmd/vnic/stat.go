package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"vnic.dev/vnic/cmd/vnic/internal/stat"
)

func statCommand() *cobra.Command {
	var once, asJSON bool
	c := &cobra.Command{
		Use:   "stat [PID]",
		Short: "Show the counters of a running vnic, per port and queue",
		Long: `Show the counters of a running vnic: what each port and queue has received and sent, and in which memory
its payload was written or lay; of a lab with PCIe trees, what the busiest links have carried. Once a second,
by the second, until interrupted or until that vnic ends. A vnic has a socket for it in a directory of its
user's: $VNIC_RUNTIME_DIR, else $XDG_RUNTIME_DIR/vnic, /run/user/UID/vnic (root: /run/vnic), or
/tmp/vnic-UID.`,
		Example: `  vnic stat                  of the only vnic that is running, once a second
  vnic stat --once           totals since it began
  vnic stat --json | jq '.ports[].queues[].rx.device_bytes'`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			snap, err := statOf(c, args)
			switch {
			case err != nil:
				return err
			case asJSON:
				return printJSON(c.OutOrStdout(), snap)
			case once:
				return printText(c.OutOrStdout(), func(w io.Writer) error { return stat.Table(w, nil, snap) })
			}
			return watch(c.Context(), newRepaint(c.OutOrStdout()), c.ErrOrStderr(), snap)
		},
	}
	c.ValidArgsFunction = func(c *cobra.Command, args []string, _ string) (pids []string, _ cobra.ShellCompDirective) {
		found, _ := stat.Find(c.Context())
		for _, s := range found {
			pids = append(pids, fmt.Sprintf("%d\tvnic %s", s.PID, s.Command))
		}
		if len(args) > 0 {
			pids = nil
		}
		return pids, cobra.ShellCompDirectiveNoFileComp
	}
	c.Flags().SortFlags = false
	c.Flags().BoolVar(&once, "once", false, "print the totals since that vnic began, once")
	c.Flags().BoolVar(&asJSON, "json", false, "the same as one JSON object")
	return c
}

// statOf asks the vnic that is meant.
func statOf(c *cobra.Command, args []string) (*stat.Snapshot, error) {
	if len(args) == 1 {
		pid, err := strconv.Atoi(args[0])
		if err != nil || pid <= 0 {
			return nil, usagef(c, "%q is not the number of a process", args[0])
		}
		return stat.Read(c.Context(), pid)
	}
	found, err := stat.Find(c.Context())
	if err != nil {
		return nil, err
	}
	if len(found) == 1 {
		return found[0], nil
	}
	var list strings.Builder
	for _, s := range found {
		fmt.Fprintf(&list, "\nvnic stat %d: vnic %s, %d ports, up %v", s.PID, s.Command, len(s.Ports),
			time.Duration(s.Uptime*float64(time.Second)).Round(time.Second))
	}
	return nil, usagef(c, "%d are running: say which%s", len(found), list.String())
}

// watch shows a vnic's counters once a second, from the first second on.
func watch(ctx context.Context, w *repaint, notes io.Writer, last *stat.Snapshot) error {
	if err := w.paint(func(w io.Writer) error { return stat.Table(w, nil, last) }); err != nil {
		return err
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil // that is how it ends
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
			err = w.paint(func(w io.Writer) error { return stat.Table(w, last, now) })
		}
		if err != nil {
			return err
		}
		last = now
	}
}

// repaint writes the same thing again and again: on a terminal over the last one, elsewhere below it.
type repaint struct {
	w     io.Writer
	size  func() (width, height int) // nil: not a terminal
	lines int                        // of the last one
}

func newRepaint(w io.Writer) *repaint {
	r := &repaint{w: w}
	if f, ok := w.(*os.File); ok && isTerminal(w) {
		r.size = func() (int, int) {
			width, height, err := term.GetSize(int(f.Fd()))
			if err != nil || width < 1 || height < 2 {
				return 80, 24
			}
			return width, height
		}
	}
	return r
}

func (r *repaint) paint(f func(io.Writer) error) error {
	var b strings.Builder
	if err := printText(&b, f); err != nil {
		return err
	}
	if r.size == nil {
		_, err := io.WriteString(r.w, b.String()+"\n")
		return err
	}
	width, height := r.size()
	lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
	if cut := len(lines) - (height - 1); cut > 0 {
		lines = append(lines[:height-2:height-2], fmt.Sprintf("(%d more lines: --once shows all)", cut+1))
	}
	b.Reset()
	if r.lines > 0 {
		fmt.Fprintf(&b, "\x1b[%dA\r", r.lines)
	}
	for _, l := range lines {
		if len(l) > width {
			l = l[:width]
		}
		b.WriteString(l + "\x1b[K\n")
	}
	b.WriteString("\x1b[J")
	r.lines = len(lines)
	_, err := io.WriteString(r.w, b.String())
	return err
}

// metricsFlag is of every command that has ports.
func metricsFlag(f *pflag.FlagSet, o *stat.Options) {
	f.StringVar(&o.Metrics, "metrics", "", "serve Prometheus metrics at this HOST:PORT while it runs")
}

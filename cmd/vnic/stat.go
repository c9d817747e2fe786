package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"vnic.dev/vnic/internal/live"
	"vnic.dev/vnic/internal/report/show"
	"vnic.dev/vnic/internal/report/stat"
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
				return show.JSON(c.OutOrStdout(), snap)
			case once:
				return show.Text(c.OutOrStdout(), func(w io.Writer) error { return stat.Table(w, nil, snap) })
			}
			return live.Watch(c.Context(), show.NewRepaint(c.OutOrStdout()), c.ErrOrStderr(), snap)
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
	c.Flags().BoolVar(&once, "once", false, "print the totals since that vnic began, once")
	c.Flags().BoolVar(&asJSON, "json", false, "the same as one JSON object")
	return c
}

// statOf returns the counters of the vnic whose PID is in args, or of the only vnic that runs. Several are a usage
// error.
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

func metricsFlag(f *pflag.FlagSet, o *stat.Options) {
	f.StringVar(&o.Metrics, "metrics", "", "serve Prometheus metrics at this HOST:PORT while it runs")
}

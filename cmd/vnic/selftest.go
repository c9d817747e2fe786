package main

import (
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"vnic.dev/vnic/cmd/vnic/internal/selftest"
	"vnic.dev/vnic/lab"
)

func selftestCommand() *cobra.Command {
	var verbose bool
	o := selftest.Options{}
	c := &cobra.Command{
		Use:   "selftest [flags] [PROGRAM[:CASE]...]",
		Short: "Run the Linux kernel's own driver selftests on the NIC",
		RunE: func(c *cobra.Command, args []string) error {
			o.Programs = args
			ui := newUI(c.ErrOrStderr(), false)
			defer ui.done()
			o.Log = logTo(ui, slog.LevelError, verbose)
			o.Fetch.Log, o.Fetch.Progress = o.Log, ui.fetch
			o.Note, o.Stage = ui.note, ui.doingNow
			o.Tell = func(l string) { ui.note("%s", l) }
			return selftest.Do(c.Context(), &o)
		},
	}
	f := c.Flags()
	f.SortFlags = false
	f.StringVar(&o.NIC, "nic", lab.GVE, "gve or virtio")
	f.IntVar(&o.MTU, "mtu", 1500, "MTU of both ends")
	f.DurationVar(&o.Timeout, "timeout", 10*time.Minute, "of a program")
	f.BoolVar(&verbose, "verbose", false, "log")
	return c
}

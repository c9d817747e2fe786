package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"

	"vnic.dev/vnic/assets"
	"vnic.dev/vnic/cmd/vnic/internal/selftest"
	"vnic.dev/vnic/cmd/vnic/internal/selftest/ktap"
	selftestresults "vnic.dev/vnic/cmd/vnic/internal/selftest/results"
	"vnic.dev/vnic/lab"
)

func selftestCommand() *cobra.Command {
	var verbose, list bool
	o := selftest.Options{NIC: lab.GVE, MTU: 9000, Timeout: 10 * time.Minute, Repeat: 1}
	c := &cobra.Command{
		Use:   "selftest [flags] [PROGRAM[:CASE]...]",
		Short: "Run the Linux kernel's own driver selftests on the NIC",
		RunE: func(c *cobra.Command, args []string) error {
			o.Programs = args
			if err := o.Check(); err != nil {
				return misuse(c, err)
			}
			ui := newUI(c.ErrOrStderr(), false)
			defer ui.done()
			o.Log = logTo(ui, slog.LevelError, verbose)
			o.Fetch.Log, o.Fetch.Progress = o.Log, ui.fetch
			o.Note, o.Stage = ui.note, ui.doingNow
			o.Stdin, o.Stdout, o.Stderr = os.Stdin, c.OutOrStdout(), c.ErrOrStderr()
			if list {
				names, err := selftest.List(c.Context(), &o)
				ui.done()
				for _, n := range names {
					fmt.Fprintln(c.OutOrStdout(), n)
				}
				return err
			}
			o.Ended = func(p *selftestresults.Program) {
				n := p.Count()
				ui.note("%s %s: %d pass, %d fail, %d skip, %d xfail, %.0f s", p.Name, p.Column, n[ktap.Pass], n.Bad(), n[ktap.Skip],
					n[ktap.XFail], p.Seconds)
				for _, x := range p.Cases {
					if x.Result != ktap.Pass {
						ui.note("   %s %s: %s", x.Name, x.Result, x.Reason)
						for _, d := range x.Diagnostics {
							ui.note("      %s", d)
						}
					}
				}
				for _, d := range p.Diagnostics {
					ui.note("   : %s", d)
				}
				for _, s := range p.Splats {
					ui.note("   kernel: %s: %s: %s", s.Case, s.Kind, s.Title)
				}
				if p.Devmem != nil {
					ui.note("   %+v", *p.Devmem)
				}
			}
			_, err := selftest.Do(c.Context(), &o)
			if u := (*selftest.UsageError)(nil); errors.As(err, &u) {
				return misuse(c, err)
			}
			return err
		},
	}
	f := c.Flags()
	f.SortFlags = false
	f.StringVar(&o.NIC, "nic", o.NIC, "gve, which needs QEMU "+assets.MinVFIOUser+"; or virtio")
	f.BoolVar(&list, "list", false, "list the programs")
	f.BoolVar(&o.Patched, "patch-tests", false, "run programs that assume what not all NICs have with vnic's patches, too")
	f.StringVar(&o.Device, "device", "", "a NIC of QEMU's own in place of --nic: virtio-net-pci, vmxnet3 or e1000e")
	f.BoolVar(&o.Shell, "shell", false, "a shell in the guest at the first failure")
	f.StringVar(&o.Source, "source", "", "a kernel's tree, whose tests are built and run")
	f.StringVar(&o.Tests, "tests", "",
		"a directory laid out as tools/testing/selftests, whose .py and .sh files take the place of the tests'")
	f.IntVar(&o.Repeat, "repeat", o.Repeat, "how often")
	f.DurationVar(&o.Timeout, "timeout", o.Timeout, "for each program")
	f.IntVar(&o.MTU, "mtu", o.MTU, "MTU of both ends")
	f.IntVar(&o.GDB, "gdb", 0, "port of a gdb server for the guest's kernel")
	sourceFlags(f, &o.Fetch)
	f.BoolVar(&o.Fetch.Offline, "offline", false, "use what is in the cache, fetch nothing")
	f.BoolVarP(&verbose, "verbose", "v", false, "log what happens")
	return c
}

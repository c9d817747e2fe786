package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"

	"github.com/spf13/cobra"

	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/report/show"
)

const behindDashes = "QEMU's own arguments stand behind --, as in: vnic qemu -- --version"

func qemuCommand() *cobra.Command {
	var verbose bool
	o := assets.Options{CachedQEMU: true, VFIOUser: true}
	c := &cobra.Command{
		Use:   "qemu [flags] -- ARGS...",
		Short: "Run the cache's QEMU, as if it were installed",
		Long: `Run the QEMU that vnic keeps in its cache, qemu-system-x86_64, as if it were installed: with its own
libraries and firmware, on a machine that needs to have none. It takes this process's place: streams, signals
and exit status are its own, and all arguments behind -- go to it. Without one in the cache it is fetched.
It takes the flags that 'vnic serve' prints, on either NIC. While it runs, 'vnic cache rm' leaves it alone.`,
		Example: `  vnic qemu -- --version
  vnic qemu -- -device help
  vnic qemu -- -m 1G -nographic -cdrom debian.iso`,
		Args: func(c *cobra.Command, args []string) error {
			switch n := c.ArgsLenAtDash(); {
			case n < 0 && len(args) == 0:
				return usagef(c, "no arguments for QEMU: %s", behindDashes)
			case n != 0:
				return usagef(c, "%q: %s", args[0], behindDashes)
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			ui := show.New(c.ErrOrStderr(), false)
			defer ui.Done()
			ui.Fetching(&o, verbose)
			r, err := assets.Fetch(c.Context(), o)
			if err != nil {
				return err
			}
			for _, n := range r.Notes {
				ui.Note("%s", n)
			}
			ui.Done()
			if err := r.Leave(); err != nil {
				return errors.Join(err, r.Close())
			}
			program := r.QEMU.Args[0]
			err = syscall.Exec(program, slices.Concat(r.QEMU.Args, args), append(os.Environ(), r.QEMU.Env...))
			return errors.Join(fmt.Errorf("start QEMU: %s: %w", program, err), r.Close())
		},
	}
	c.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return usagef(c, "%w: %s", err, behindDashes) })
	f := c.Flags()
	mirrorFlags(f, &o)
	offlineFlag(f, &o)
	f.BoolVarP(&verbose, "verbose", "v", false, "log what happens")
	return c
}

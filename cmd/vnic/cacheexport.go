package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"vnic.dev/vnic/cmd/vnic/internal/export"
	"vnic.dev/vnic/cmd/vnic/internal/show"
	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/version"
)

func cacheExportCommand() *cobra.Command {
	var o export.Options
	var asJSON bool
	c := &cobra.Command{
		Use:   "export FILE",
		Short: "Write one file for machines without a network",
		Long: `Write one file with this program and what some commands need: QEMU with its libraries and firmware, a guest
kernel, and the modules that these commands' guests load, for NICs of either model. What the cache lacks is
fetched first. The file is a tar. On the other machine, which needs tar and gzip, and no vnic:

  tar xf FILE vnic.gz && gunzip vnic.gz && ./vnic cache import FILE

Then the commands work there with --offline. boot's --tools and --gpu-driver vnicgpu need more than the file has.`,
		Example: `  vnic cache export vnic.tar
  vnic cache export vnic.tar --for run,block
  vnic cache export vnic.tar --json | jq -r .sha256`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef(c, "export: one FILE to write")
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			if err := o.Check(); err != nil {
				return usagef(c, "--for: %w", err)
			}
			ui := show.New(c.ErrOrStderr(), false)
			defer ui.Done()
			o.File, o.Vnic = args[0], strings.Trim(strings.Fields(version.String())[0], "()")
			ui.Fetching(&o.Fetch, false)
			o.Note, o.Stage = ui.Note, ui.Doing
			res, err := export.Run(c.Context(), o)
			ui.Done()
			if err != nil {
				return err
			}
			return show.Report(c.OutOrStdout(), asJSON, res, func(w io.Writer) error {
				_, err := fmt.Fprintf(w, "%s, %s\n", res.File, humanize.IBytes(uint64(res.Bytes)))
				return err
			})
		},
	}
	f := c.Flags()
	f.StringSliceVar(&o.For, "for", []string{"run", "boot"}, "commands that are to work there: "+
		strings.Join(export.Commands(), ", "))
	offlineFlag(f, &o.Fetch)
	f.BoolVar(&asJSON, "json", false, "print one JSON object")
	mirrorFlags(f, &o.Fetch)
	return c
}

func cacheImportCommand() *cobra.Command {
	var o assets.Options
	var asJSON bool
	c := &cobra.Command{
		Use:   "import FILE",
		Short: "Read into the cache what another machine has exported",
		Long: `Read into the cache a file that 'vnic cache export' has written on another machine. All of it is checked (sizes,
names, SHA-256) and tried before anything in the cache changes. What is in it runs as you: import only files
of people whom you trust. It needs no network; - is standard input.`,
		Example: `  vnic cache import vnic.tar && vnic run --offline
  ssh login cat vnic.tar | vnic cache import -`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef(c, "import: one FILE to read")
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			in := c.InOrStdin()
			if args[0] != "-" {
				f, err := os.Open(args[0])
				if err != nil {
					return err
				}
				defer func() { _ = f.Close() }()
				in = f
			}
			ui := show.New(c.ErrOrStderr(), false)
			defer ui.Done()
			o.Progress = ui.Fetch
			done, err := assets.Import(c.Context(), o, in)
			ui.Done()
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			return show.Report(c.OutOrStdout(), asJSON, done, func(w io.Writer) error {
				_, err := fmt.Fprintf(w, "%s in %s: with --offline work now: %s\n", humanize.IBytes(uint64(done.Bytes)),
					done.Cache, strings.Join(done.For, ", "))
				return err
			})
		},
	}
	f := c.Flags()
	f.BoolVar(&asJSON, "json", false, "print one JSON object")
	cacheFlag(f, &o.CacheDir)
	return c
}

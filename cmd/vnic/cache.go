package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"vnic.dev/vnic/internal/job/export"
	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/report/show"
	"vnic.dev/vnic/internal/version"
)

func cacheCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "cache",
		Short: "List what the cache keeps (QEMU, kernels, images, tools), remove some, or take it to other machines",
		Long: `List what the cache keeps, or remove some of it: QEMU and guest kernels that were fetched, guest images
that were built from them, and tools. What is removed and needed again is fetched or built again.
For machines without a network, export writes one file with the program and what it needs, import reads it.`,
		Example: `  vnic cache ls              what is there, how large, and when it was last used
  vnic cache rm images       remove all of a kind
  vnic cache rm --all        remove everything that is not in use
  vnic cache export FILE     take run and boot to a machine without a network`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(cacheListCommand(), cacheRemoveCommand(), cacheExportCommand(), cacheImportCommand())
	return c
}

func cacheFlag(f *pflag.FlagSet, dir *string) {
	f.StringVar(dir, "cache", "", "cache directory ($"+assets.EnvCache+"; else $XDG_CACHE_HOME/vnic or ~/.cache/vnic)")
}

func cacheListCommand() *cobra.Command {
	var o assets.Options
	var asJSON bool
	c := &cobra.Command{
		Use:   "ls",
		Short: "List what the cache keeps",
		Long: `List what the cache keeps: names as 'vnic cache rm' takes them, what each takes up, and when it was last
used (tools: when they were made).`,
		Example: `  vnic cache ls
  vnic cache ls --json | jq .bytes`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			dir, list, err := assets.ListCache(o)
			if err != nil {
				return err
			}
			return show.Report(c.OutOrStdout(), asJSON, export.Contents(dir, list),
				func(w io.Writer) error { return export.List(w, dir, list) })
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	cacheFlag(c.Flags(), &o.CacheDir)
	return c
}

func cacheRemoveCommand() *cobra.Command {
	var o assets.Options
	var everything bool
	c := &cobra.Command{
		Use:   "rm NAME...",
		Short: "Remove some of the cache",
		Long: `Remove some of the cache: by name, by what a name begins with, or by kind (qemu, kernel, images, programs,
tools, tmp). What a running vnic or QEMU uses stays. Links are removed, not what they lead to.`,
		Example: `  vnic cache rm images kernel
  vnic cache rm images/2445763a
  vnic cache rm --all`,
		RunE: func(c *cobra.Command, args []string) error {
			if everything == (len(args) > 0) {
				return usagef(c, "rm: names ('vnic cache ls' lists them), or --all")
			}
			removed, err := assets.RemoveCached(c.Context(), o, func(list []assets.CacheEntry) ([]assets.CacheEntry, error) {
				if everything {
					return list, nil
				}
				return assets.Choose(list, args)
			})
			for _, e := range removed {
				if _, perr := fmt.Fprintf(c.OutOrStdout(), "removed %s, %s\n", e.Name, export.Size(e)); perr != nil {
					return errors.Join(err, perr)
				}
			}
			return err
		},
	}
	c.ValidArgsFunction = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		var names []string
		_, list, _ := assets.ListCache(o)
		for _, e := range list {
			names = append(names, e.Name)
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
	c.Flags().BoolVar(&everything, "all", false, "remove everything that is not in use")
	cacheFlag(c.Flags(), &o.CacheDir)
	return c
}

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

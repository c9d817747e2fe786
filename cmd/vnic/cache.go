package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"vnic.dev/vnic/cmd/vnic/internal/export"
	"vnic.dev/vnic/cmd/vnic/internal/show"
	"vnic.dev/vnic/internal/machine/assets"
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

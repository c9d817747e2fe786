package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/machine/qemu"
)

func doctorCommand() *cobra.Command {
	var o assets.Options
	var asJSON, report bool
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Say what this machine has, what is missing, and what a run will download and need",
		Long: `Say what this machine has, what is missing, and what a run will download and need. Nothing is changed, no
guest is started, and the network is not used.`,
		Example: `  vnic doctor
  vnic doctor --json
  vnic doctor --report       for an issue about KVM
  vnic doctor --kernel bzImage --modules lib/modules   would these do?`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			rep := qemu.Doctor(c.Context(), o)
			if report {
				return printText(c.OutOrStdout(), rep.PrintReport)
			}
			if asJSON {
				return printJSON(c.OutOrStdout(), rep)
			}
			return printDoctor(c.OutOrStdout(), rep)
		},
	}
	c.Flags().SortFlags = false
	c.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	c.Flags().BoolVar(&report, "report", false, "print what an issue about KVM needs to say of this machine: processor, "+
		"kernel, KVM's modules and parameters, and what was tried; no names of machines, users or files")
	sourceFlags(c.Flags(), &o)
	headersFlag(c.Flags(), &o)
	return c
}

// printDoctor prints a line for each fact, and a last one that says what a run can count on.
func printDoctor(w io.Writer, rep *qemu.Report) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, f := range rep.Facts {
		mark := string(f.State)
		switch {
		case f.State == assets.Good:
			mark = green(w, mark)
		case f.State == assets.Worse:
			mark = yellow(w, "note")
		case rep.CanFetch && strings.HasPrefix(f.Fix, "the first run fetches"):
			mark = yellow(w, "to fetch")
		default:
			mark = red(w, mark)
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\n", f.Name, mark, agent.Plain(f.Value))
		if f.Fix != "" {
			// As many escapes as above: tabwriter counts them.
			fmt.Fprintf(tw, "\t%s\t%s\n", paint(w, "39", ""), agent.Plain(f.Fix))
		}
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	var err error
	switch {
	case rep.Ready:
		_, err = fmt.Fprintf(w, "\nready: 'vnic run' has all it needs, and takes %d MB of memory while it runs\n",
			rep.MemoryBytes>>20)
	case rep.CanFetch && rep.DownloadBytes > 0:
		_, err = fmt.Fprintf(w,
			"\nready: the first 'vnic run' downloads %d MB and keeps %d MB in the cache; "+
				"it takes %d MB of memory while it runs\n",
			rep.DownloadBytes>>20, rep.DiskBytes>>20, rep.MemoryBytes>>20)
	default:
		_, err = fmt.Fprintln(w,
			"\nnot ready for guests in QEMU: each 'missing' above says what to do. 'vnic run --guest inproc' needs no QEMU.")
	}
	return err
}

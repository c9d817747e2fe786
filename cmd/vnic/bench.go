package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"

	"vnic.dev/vnic/cmd/vnic/internal/bench"
	"vnic.dev/vnic/internal/outfile"
)

func benchCommand() *cobra.Command {
	var (
		asJSON, schema, list, quick bool
		plot                        string
		o                           = bench.Defaults()
	)
	c := &cobra.Command{
		Use:   "bench",
		Short: "Measure how fast the datapath is on this machine, each measurement beside a yardstick",
		Long: `Measure how fast the datapath is on this machine, each measurement beside a yardstick in the same run: a copy
of the same bytes, a plain loop over the same kind of rings, a socket of the host. A row has the ratio to its
yardstick, the median of alternating pairs, with the interval in which it lies with a confidence of 95 %, and
the same of ours against ours (A/A): what the machine's noise alone makes of a ratio.`,
		Example: `  vnic bench                        all of it, in some minutes
  vnic bench --quick                all of it in a minute, with wider intervals
  vnic bench --list                 what is measured, and against what
  vnic bench --only worker,memcpy   rows by name, or by its first words
  vnic bench --plot bench.svg       ratios and intervals as a picture, too
  vnic bench --json                 one JSON object on stdout`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			f := c.Flags()
			switch {
			case schema:
				_, err := fmt.Fprint(c.OutOrStdout(), bench.Schema)
				return err
			case list && f.NFlag() > 1:
				return usagef(c, "--list: nothing is measured: give no other flag")
			case list:
				return bench.List(c.OutOrStdout())
			case quick && (f.Changed("pairs") || f.Changed("time")):
				return usagef(c, "--quick: it sets --pairs and --time: leave it out, or them")
			case f.Changed("plot") && !strings.HasSuffix(plot, ".svg"):
				return usagef(c, "--plot %s: the picture is SVG: give a name that ends in .svg", plot)
			case quick:
				q := bench.QuickOptions()
				q.Only = o.Only
				o = q
			}
			if f.Changed("only") && len(o.Only) == 0 {
				return usagef(c, "--only: no name: see 'vnic bench --list'")
			}
			if err := o.Check(); err != nil {
				return misuse(c, err)
			}
			return measure(c, o, plot, asJSON)
		},
	}
	f := c.Flags()
	f.SortFlags = false
	f.BoolVar(&quick, "quick", false, "take a minute: fewer and shorter runs")
	f.StringSliceVar(&o.Only, "only", nil, "names of what to measure, or their first words, with commas between")
	f.BoolVar(&list, "list", false, "list what is measured, and measure nothing")
	f.IntVar(&o.Pairs, "pairs", o.Pairs, "pairs of runs of each measurement: ours, and the yardstick")
	f.DurationVar(&o.Time, "time", o.Time, "time of each run")
	f.StringVar(&plot, "plot", "", "write the ratios and their intervals to this file, as SVG")
	f.BoolVar(&asJSON, "json", false, "print one JSON object (schema: vnic bench --json-schema)")
	f.BoolVar(&schema, "json-schema", false, "print the schema of --json")
	_ = c.RegisterFlagCompletionFunc("only", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return bench.Names(), cobra.ShellCompDirectiveNoFileComp
	})
	return c
}

// measure measures, and prints what came of it.
func measure(c *cobra.Command, o bench.Options, plot string, asJSON bool) (err error) {
	var picture io.WriteCloser
	if plot != "" { // before it is measured: a wrong name is found at once
		if picture, err = outfile.Create(plot); err != nil {
			return fmt.Errorf("--plot: %w", err)
		}
		defer func() { err = errors.Join(err, picture.Close()) }()
	}
	ui := newUI(c.ErrOrStderr(), asJSON)
	o.Log = logTo(ui, slog.LevelError, false)
	o.Progress = ui.measuring
	rep, err := bench.Do(c.Context(), o)
	ui.done()
	if rep == nil || len(rep.Rows) == 0 {
		return err
	}
	if asJSON {
		err = errors.Join(err, printJSON(c.OutOrStdout(), rep))
	} else {
		err = errors.Join(err, rep.Table(c.OutOrStdout()))
	}
	if picture != nil {
		err = errors.Join(err, rep.SVG(picture))
	}
	return err
}

package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"

	"vnic.dev/vnic/internal/job/bench"
	"vnic.dev/vnic/internal/outfile"
	"vnic.dev/vnic/internal/report/show"
)

func benchCommand() *cobra.Command {
	var (
		asJSON, schema, list, quick, model bool
		plot                               string
		o                                  = bench.Defaults()
	)
	c := &cobra.Command{
		Use:   "bench",
		Short: "Measure how fast the datapath is on this machine, each measurement beside a yardstick",
		Long: `Measure how fast the datapath is on this machine, each measurement beside a yardstick in the same run: a copy
of the same bytes, a plain loop over the same kind of rings, a socket of the host. A row has the ratio to its
yardstick, the median of alternating pairs, with the interval in which it lies with a confidence of 95 %, and
the same of ours against ours (A/A): what the machine's noise alone makes of a ratio.

With --model it measures copies of memory and flows through NICs, each alone, predicts from that, by max-min
fairness, what a flow gets beside workers that copy as fast as they can, and measures this, too: the error of
the model by which labs' links are shared, where what is shared is this machine's memory.`,
		Example: `  vnic bench                        all of it, in some minutes
  vnic bench --quick                all of it in a minute, with wider intervals
  vnic bench --list                 what is measured, and against what
  vnic bench --only worker,memcpy   rows by name, or by its first words
  vnic bench --plot bench.svg       ratios and intervals as a picture, too
  vnic bench --model                a prediction, beside what comes of it
  vnic bench --json                 one JSON object on stdout`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			f := c.Flags()
			switch {
			case schema && model:
				_, err := fmt.Fprint(c.OutOrStdout(), bench.ModelSchema)
				return err
			case schema:
				_, err := fmt.Fprint(c.OutOrStdout(), bench.Schema)
				return err
			case list && f.NFlag() > 1:
				return usagef(c, "--list: nothing is measured: give no other flag")
			case list:
				return show.Text(c.OutOrStdout(), bench.List)
			case model && f.Changed("only"):
				return usagef(c, "--model: it has rows of its own, and measures all of them: leave --only out")
			case model && (quick || f.Changed("pairs")):
				return usagef(c, "--model: it measures each row five times: leave --quick and --pairs out")
			case model && f.Changed("plot"):
				return usagef(c, "--model: it has no picture: leave --plot out")
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
			return measure(c, o, plot, asJSON, model)
		},
	}
	f := c.Flags()
	f.BoolVar(&quick, "quick", false, "take a minute: fewer and shorter runs")
	f.StringSliceVar(&o.Only, "only", nil, "names of what to measure, or their first words, with commas between")
	f.BoolVar(&list, "list", false, "list what is measured, and measure nothing")
	f.IntVar(&o.Pairs, "pairs", o.Pairs, "pairs of runs of each measurement: ours, and the yardstick")
	f.DurationVar(&o.Time, "time", o.Time, "time of each run")
	f.BoolVar(&model, "model", false, "what the model predicts of a flow beside copies of memory, and what comes of it")
	f.StringVar(&plot, "plot", "", "write the ratios and their intervals to this file, as SVG")
	f.BoolVar(&asJSON, "json", false, "print one JSON object (schema: vnic bench --json-schema)")
	f.BoolVar(&schema, "json-schema", false, "print the schema of --json, or of --model --json")
	_ = c.RegisterFlagCompletionFunc("only", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return bench.Names(), cobra.ShellCompDirectiveNoFileComp
	})
	return c
}

func measure(c *cobra.Command, o bench.Options, plot string, asJSON, model bool) (err error) {
	var picture io.WriteCloser
	if plot != "" { // before measuring, to find a wrong name at once
		if picture, err = outfile.Create(plot); err != nil {
			return fmt.Errorf("--plot: %w", err)
		}
		defer func() { err = errors.Join(err, picture.Close()) }()
	}
	ui := show.New(c.ErrOrStderr(), asJSON)
	o.Log, o.Progress = show.Log(ui, slog.LevelError, false), ui.Measuring
	if model {
		rep, err := bench.Model(c.Context(), o)
		if ui.Done(); err != nil {
			return err
		}
		return show.Report(c.OutOrStdout(), asJSON, rep, rep.Table)
	}
	rep, err := bench.Do(c.Context(), o)
	ui.Done()
	if rep == nil || len(rep.Rows) == 0 {
		return err
	}
	err = errors.Join(err, show.Report(c.OutOrStdout(), asJSON, rep, rep.Table))
	if picture != nil {
		err = errors.Join(err, rep.SVG(picture))
	}
	return err
}

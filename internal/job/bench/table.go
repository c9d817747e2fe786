package bench

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Table prints the report, one row a line, then a line about the machine and the runs.
func (rep *Report) Table(w io.Writer) error {
	if err := columns.Right(w, rep.Rows, func(r *Row) string { return strings.TrimRight(" "+r.Note, " ") }); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\n%d processors, %s, %s; medians of %d pairs of ours and yardstick, %g s a run\n", rep.CPUs,
		rep.Arch, rep.Go, rep.Pairs, rep.RunSeconds)
	return err
}

// optional returns a function for a column's cells: it returns the text of a part of a row, or "-" if the part is nil.
func optional[R, P any](part func(*R) *P, text func(*P) string) func(*R) string {
	return func(r *R) string {
		if p := part(r); p != nil {
			return text(p)
		}
		return "-"
	}
}

func (v *Interval) value() string { return amount(v.Median) }

// amount formats a value: from 1 on with at least three digits, below with two decimals.
func amount(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

func (v *Interval) ratio() string { return digits(v.Median) }

func digits(v float64) string {
	if v < 0.1 {
		return fmt.Sprintf("%.3f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

func (v *Interval) bounds() string { return digits(v.Low) + " - " + digits(v.High) }

// List prints the name, unit, description and yardstick of all measurements.
func List(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, m := range All() {
		yardstick := ""
		if m.Yardstick != "" {
			yardstick = "against " + m.Yardstick
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\n", m.Name, m.Unit, m.About, yardstick)
	}
	return tw.Flush()
}

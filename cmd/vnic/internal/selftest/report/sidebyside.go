package report

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"vnic.dev/vnic/cmd/vnic/internal/selftest/ktap"
	"vnic.dev/vnic/cmd/vnic/internal/selftest/results"
)

// SideBySide writes a table in Markdown with a row for each program and a column for each run and column of tests: how
// many cases pass, fail and skip, as 4/0/1, and behind an x those that fail as their author expects.
func SideBySide(w io.Writer, runs []*results.Run) error {
	type key struct {
		run    int
		column results.Column
	}
	var columns []key
	var names []string
	for i, r := range runs {
		for k := range r.Programs {
			p := &r.Programs[k]
			if c := (key{i, p.Column}); !slices.Contains(columns, c) {
				columns = append(columns, c)
			}
			if !slices.Contains(names, p.Name) {
				names = append(names, p.Name)
			}
		}
	}
	slices.SortStableFunc(columns, func(a, b key) int {
		if a.run != b.run {
			return a.run - b.run
		}
		return strings.Compare(string(b.column), string(a.column)) // unmodified, then patched
	})
	fmt.Fprint(w, "| program |")
	for _, c := range columns {
		fmt.Fprintf(w, " %s%s |", device(runs[c.run]), column(c.column))
	}
	fmt.Fprintf(w, "\n|---|%s\n", strings.Repeat("---|", len(columns)))
	for _, name := range names {
		fmt.Fprintf(w, "| %s |", name)
		for _, c := range columns {
			fmt.Fprintf(w, " %s |", counts(runs[c.run].Program(name, c.column)))
		}
		fmt.Fprintln(w)
	}
	var kernels []string
	for _, r := range runs {
		if k := fmt.Sprintf("%s: kernel %s", device(r), r.Kernel); !slices.Contains(kernels, k) {
			kernels = append(kernels, k)
		}
	}
	_, err := fmt.Fprintf(w, "\npass/fail/skip, x: fails as its author expects. %s.\n", strings.Join(kernels, "; "))
	return err
}

func counts(p *results.Program) string {
	if p == nil {
		return "-"
	}
	c := p.Count()
	s := fmt.Sprintf("%d/%d/%d", c[ktap.Pass], c.Bad(), c[ktap.Skip])
	if n := c[ktap.XFail]; n > 0 {
		s += fmt.Sprintf(" x%d", n)
	}
	if len(p.Splats) > 0 {
		s += " (kernel complained)"
	}
	return s
}

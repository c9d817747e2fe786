package main

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Limits of the ratio of the new code's time to the base's, and of chance.
const (
	maxMean   = 1.02 // for the geometric mean of a package; its A/A spread (the base against itself) is added
	maxOne    = 1.10 // for a benchmark, unless the difference may be chance: then p is maxChance or more, or unknown
	maxChance = 0.01
)

var judged = []string{"sec/op", "allocs/op"}

// noisy is the A/A spread above which judge advises to measure again.
const noisy = 0.05

// judge compares the results that measure has written to dir, in this run or an earlier one, by benchstat, which it
// runs in the directory tools. It prints the comparison, and returns an error if the new code is too slow, allocates
// where the base did not, or if a side lacks results.
func judge(ctx context.Context, tools, dir string, out io.Writer) error {
	bases, err := filepath.Glob(filepath.Join(dir, "*."+sideBase))
	if err != nil {
		return err
	}
	if len(bases) == 0 {
		return fmt.Errorf("%s: no results: files PACKAGE.%s, PACKAGE.%s and PACKAGE.%s", dir, sideBase, sideSame, sideNew)
	}
	slices.Sort(bases)
	var wrong []error
	for _, base := range bases {
		if base, err = filepath.Abs(base); err != nil {
			return err
		}
		name := strings.TrimSuffix(base, sideBase)
		args := []string{"tool", "benchstat", "-format", "csv"}
		for _, side := range []string{sideBase, sideSame, sideNew} {
			args = append(args, side+"="+name+side)
		}
		text, err := output(ctx, tools, "go", args...)
		if err != nil {
			return err
		}
		tables, err := readTables(text)
		if err != nil {
			return fmt.Errorf("benchstat of %s: %w", base, err)
		}
		wrong = append(wrong, judgePackage(tables, out))
	}
	return errors.Join(wrong...)
}

// A table has benchstat's results for a unit in a package.
type table struct {
	pkg, unit string
	rows      []row
}

// row is a benchmark: the medians of the three sides, and benchstat's p-value of new against base, or NaN.
type row struct {
	name            string
	base, same, now float64
	p               float64
}

// readTables reads benchstat's CSV of three files, one a side. It skips tables of metrics that judge does not judge and
// that only the new side has.
func readTables(text string) ([]table, error) {
	var all []table
	pkg := ""
	for block := range strings.SplitSeq(text, "\n\n") {
		r := csv.NewReader(strings.NewReader(block))
		r.FieldsPerRecord = -1
		r.LazyQuotes = true
		lines, err := r.ReadAll()
		if err != nil {
			return nil, err
		}
		for len(lines) > 0 && len(lines[0]) == 1 {
			if rest, ok := strings.CutPrefix(lines[0][0], "pkg: "); ok {
				pkg = rest
			}
			lines = lines[1:]
		}
		if len(lines) == 0 {
			continue
		}
		// A table's first line has the names of the sides: two columns are for the first side, and four for each other.
		head := lines[0]
		if len(lines) > 1 && len(head) > 1 && head[1] == sideNew && !slices.Contains(judged, lines[1][1]) {
			continue // a metric that only the new side prints
		}
		if len(lines) < 2 || len(head) < 8 || head[1] != sideBase || head[3] != sideSame || head[7] != sideNew {
			return nil, fmt.Errorf("not a table of %s, %s and %s: %q", sideBase, sideSame, sideNew, head)
		}
		t := table{pkg: pkg, unit: lines[1][1]}
		for _, l := range lines[2:] {
			if l[0] == "geomean" {
				continue
			}
			r := row{name: l[0], base: number(l, 1), same: number(l, 3), now: number(l, 7), p: math.NaN()}
			if len(l) > 10 {
				p, _, _ := strings.Cut(strings.TrimPrefix(l[10], "p="), " ")
				if r.p, err = strconv.ParseFloat(p, 64); err != nil {
					return nil, fmt.Errorf("%s: p: %w", l[0], err)
				}
			}
			t.rows = append(t.rows, r)
		}
		all = append(all, t)
	}
	return all, nil
}

func number(line []string, column int) float64 {
	if column >= len(line) || line[column] == "" {
		return math.NaN()
	}
	v, err := strconv.ParseFloat(line[column], 64)
	if err != nil {
		return math.NaN()
	}
	return v
}

func judgePackage(tables []table, out io.Writer) error {
	var wrong []error
	timed := false
	for _, t := range tables {
		for _, r := range t.rows {
			if math.IsNaN(r.base) || math.IsNaN(r.same) || math.IsNaN(r.now) {
				wrong = append(wrong, fmt.Errorf("%s %s: %s of not all sides", t.pkg, r.name, t.unit))
			}
		}
		switch t.unit {
		case "sec/op":
			timed = true
			wrong = append(wrong, judgeTimes(t, out))
		case "allocs/op":
			for _, r := range t.rows {
				if r.base == 0 && r.now > 0 {
					wrong = append(wrong, fmt.Errorf("%s %s allocates %v times, where it did not", t.pkg, r.name, r.now))
				}
			}
		}
	}
	if !timed {
		wrong = append(wrong, errors.New("no times: nothing was compared"))
	}
	return errors.Join(wrong...)
}

func judgeTimes(t table, out io.Writer) error {
	var wrong []error
	var logSame, logNow float64
	for _, r := range t.rows {
		ratio := r.now / r.base
		logSame += math.Log(r.same / r.base)
		logNow += math.Log(ratio)
		mark := "ok  "
		if ratio > maxOne && r.p < maxChance {
			mark = "SLOW"
			wrong = append(wrong, fmt.Errorf("%s %s: %.3f times as long (p=%.3f), more than %.2f",
				t.pkg, r.name, ratio, r.p, maxOne))
		}
		fmt.Fprintf(out, "%s %-14s %-48s %12s -> %12s: %.3f (p=%.3f), A/A %.3f\n",
			mark, t.pkg, r.name, duration(r.base), duration(r.now), ratio, r.p, r.same/r.base)
	}
	n := float64(len(t.rows))
	mean, spread := math.Exp(logNow/n), math.Exp(math.Abs(logSame/n))-1
	mark := "ok  "
	if !(mean <= maxMean+spread) { // true also if one is NaN
		mark = "SLOW"
		wrong = append(wrong, fmt.Errorf("%s: geometric mean %.3f, more than %.2f and the A/A spread of %.3f",
			t.pkg, mean, maxMean, spread))
	}
	fmt.Fprintf(out, "%s %-14s geometric mean of %d: %.3f, A/A spread %.3f\n", mark, t.pkg, len(t.rows), mean, spread)
	if spread > noisy {
		fmt.Fprintf(out, "note %-14s A/A spread above %.2f: measure again when the machine has nothing else to do\n",
			t.pkg, noisy)
	}
	return errors.Join(wrong...)
}

func duration(seconds float64) string {
	return strconv.FormatFloat(seconds*1e9, 'f', 1, 64) + " ns"
}

package report

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"vnic.dev/vnic/internal/job/selftest/expect"
	"vnic.dev/vnic/internal/job/selftest/ktap"
	"vnic.dev/vnic/internal/job/selftest/results"
)

// SideBySide writes a Markdown table with a row for each program, and for each run a column for unmodified programs
// and one for patched ones, if it has them. The cell of a program that ran has the numbers of cases that pass, fail
// (Count.Bad) and skip, as 4/0/1, after an x, unless it is 0, the number that fail as their author expects, and a note
// if the kernel complained. If a run has several results of a program in a column, the cell has the first.
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
	slices.SortStableFunc(columns, func(a, b key) int { // by run, unmodified before patched
		return cmp.Or(cmp.Compare(a.run, b.run), cmp.Compare(b.column, a.column))
	})
	fmt.Fprint(w, "| program |")
	for _, c := range columns {
		fmt.Fprintf(w, " %s%s |", device(runs[c.run]), c.column.Suffix())
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

// Yardstick writes which cases pass in the last run on QEMU's own virtio-net, and in no run on vnic's virtio, with or
// without XDP, though their program is in one of these (expect.Behind). It returns how many of the cases fail or have
// no result. Of cases with the same program, column and result it names three, and counts the others. If runs has no
// run on one of the two, Yardstick writes nothing.
func Yardstick(w io.Writer, runs []*results.Run) (failures int, err error) {
	var ours []*results.Run
	var theirs *results.Run
	for _, r := range runs {
		switch {
		case r.Device != "vnic" && r.Model == "virtio-net-pci":
			theirs = r
		case r.Device == "vnic" && strings.HasPrefix(r.Model, "virtio"):
			ours = append(ours, r)
		}
	}
	if theirs == nil || ours == nil {
		return 0, nil
	}
	type key struct {
		program string
		column  results.Column
		result  ktap.Result
	}
	var keys []key
	cases := map[key][]string{}
	for _, l := range expect.Behind(theirs, ours) {
		k := key{l.Program, l.Column, l.Result}
		if cases[k] == nil {
			keys = append(keys, k)
		}
		cases[k] = append(cases[k], l.Case)
		if l.Bad() {
			failures++
		}
	}
	if len(keys) == 0 {
		_, err = fmt.Fprintf(w, "\nAll that passes on %s passes on vnic's virtio.\n", device(theirs))
		return 0, err
	}
	fmt.Fprintf(w, "\nWhat passes on %s, and not on vnic's virtio:\n\n", device(theirs))
	for _, k := range keys {
		list, more := cases[k], ""
		if n := len(list) - 3; n > 0 {
			list, more = list[:3], fmt.Sprintf(" and %d more", n)
		}
		_, err = fmt.Fprintf(w, "- %s%s, %s: %s%s\n", k.program, k.column.Suffix(),
			cmp.Or(k.result, "no result"), strings.Join(list, ", "), more)
	}
	return failures, err
}

func counts(p *results.Program) string {
	if p == nil {
		return "-"
	}
	if p.Left != nil {
		return "patch does not apply"
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

// Files reads runs from JSON files of vnic selftest, and prints them with SideBySide and Yardstick. Failures that
// Yardstick counts are an error.
func Files(w io.Writer, names []string) error {
	var runs []*results.Run
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		run := new(results.Run)
		err = json.Unmarshal(b, run)
		if n := run.Schema; n != results.Schema && (n != 0 || err == nil) { // 0 with an error: err is returned
			err = fmt.Errorf("schema %d, not %d", n, results.Schema)
		}
		if err != nil {
			return fmt.Errorf("%s: no result of vnic selftest --json of this version: %w", name, err)
		}
		runs = append(runs, run)
	}
	if err := SideBySide(w, runs); err != nil {
		return err
	}
	n, err := Yardstick(w, runs)
	if err == nil && n > 0 {
		err = fmt.Errorf("%d cases fail on vnic's virtio that pass on QEMU's own virtio-net: the reason is vnic's", n)
	}
	return err
}

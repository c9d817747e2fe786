package sabotage

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"vnic.dev/vnic/internal/nic"
)

// Faults returns all faults; the faults of one class stand together.
func Faults() []Fault { return slices.Clone(faults) }

// Has reports whether NICs of a device model can have the fault.
func (f *Fault) Has(model string) bool { return f.Only == "" || f.Only == model }

// Parse finds a fault by name: NAME, or NAME/N for one hit in N occasions. The error for an unknown name lists
// all names.
func Parse(s string) (f Fault, err error) {
	name, every, counted := strings.Cut(s, "/")
	i := slices.IndexFunc(faults, func(f Fault) bool { return f.Name == name })
	if i < 0 {
		var names []string
		for _, f := range faults {
			names = append(names, f.Name)
		}
		return f, fmt.Errorf("%s: no such fault: %s", s, strings.Join(names, ", "))
	}
	f = faults[i]
	if !counted {
		return f, nil
	}
	n, err := strconv.ParseUint(every, 10, 32)
	if err != nil || n == 0 {
		return f, fmt.Errorf("%s: /N is a number from 1 to %d: one of so many goes wrong", s, uint32(math.MaxUint32))
	}
	f.Every = uint32(n)
	return f, nil
}

// NIC returns the fault for a NIC; seed selects which one of Every occasions the fault hits (nic.Sabotage.Seed).
func (f *Fault) NIC(seed uint64) *nic.Sabotage {
	s := &nic.Sabotage{Name: f.Name, Every: f.Every, Seed: seed}
	f.install(s)
	return s
}

// Table returns a table for people: a line of headings, and a line for each fault.
func Table() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "NAME\tCLASS\tMODEL\tRUN VIRTIO\tRUN GVE\tNICTEST\tKERNEL'S TEST")
	for _, f := range faults {
		_, _ = fmt.Fprintln(w, strings.Join(f.row(), "\t"))
	}
	_ = w.Flush()
	return b.String()
}

func (f *Fault) row() []string {
	model, kernel := f.Only, f.Kernel
	if model == "" {
		model = "both"
	}
	if kernel == "" {
		kernel = "none"
	}
	var where []string
	if f.On != "" && f.Only == "" {
		where = append(where, f.On)
	}
	if f.With != "" {
		where = append(where, f.With)
	}
	if len(where) > 0 {
		kernel += " (" + strings.Join(where, ", ") + ")"
	}
	return []string{f.Name, f.Class, model, f.RunVirtio.String(), f.RunGVE.String(), f.Case, kernel}
}

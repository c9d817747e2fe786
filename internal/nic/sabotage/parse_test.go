package sabotage

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// For each class in the list there is a fault that both device models have. The fields of each fault fit together, and
// Table has its name.
func TestFaultsAreOfAllClasses(t *testing.T) {
	classes, names := map[string]bool{}, map[string]bool{}
	for _, f := range Faults() {
		classes[f.Class] = classes[f.Class] || f.Has(virtio) && f.Has(gve)
		if names[f.Name] || f.Name == "" || strings.ContainsAny(f.Name, "/ ") || f.Every == 0 || f.Case == "" ||
			f.What == "" {
			t.Errorf("%+v", f)
		}
		if names[f.Name] = true; (f.Kernel == "") != (f.Why != "") {
			t.Errorf("%s: the kernel's test that sees it is %q, and why none does %q", f.Name, f.Kernel, f.Why)
		}
		if (f.RunVirtio == Missing) == f.Has(virtio) || (f.RunGVE == Missing) == f.Has(gve) {
			t.Errorf("%s: vnic run: %v and %v", f.Name, f.RunVirtio, f.RunGVE)
		}
		if !strings.Contains(Table(), f.Name) {
			t.Errorf("%s is not in the table", f.Name)
		}
	}
	for _, class := range []string{"payload place", "header place", "hash", "checksum in", "checksum out", "rule",
		"RSS table", "generation or order", "missing completion", "EOP", "length", "cut", "segmentation", "stats",
		"interrupt", "use after destroy"} {
		if !classes[class] {
			t.Errorf("no fault of class %q that both models have", class)
		}
	}
}

func TestParse(t *testing.T) {
	for s, every := range map[string]uint32{"cut": 1, "generation": 40, "cut/97": 97, "cut/4294967295": 1<<32 - 1} {
		f, err := Parse(s)
		if err != nil || f.Every != every || f.NIC(5).Every != every || f.NIC(5).Name != f.Name || f.NIC(5).Seed != 5 {
			t.Errorf("%s: %+v, %v", s, f, err)
		}
	}
	for s, want := range map[string]string{
		"":                "no such fault: payload-place, ",
		"Cut":             "Cut: no such fault: ",
		"cutting/3":       "after-destroy",
		"cut/":            "cut/: /N is a number from 1 to 4294967295",
		"cut/0":           "/N is a number",
		"cut/-1":          "/N is a number",
		"cut/1/2":         "/N is a number",
		"cut/99999999999": "/N is a number",
	} {
		if _, err := Parse(s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", s, err)
		}
	}
}

// A fault hits one of Every occasions, selected by the seed.
func TestOccasions(t *testing.T) {
	f, err := Parse("cut/3")
	if err != nil {
		t.Fatal(err)
	}
	for seed, want := range []string{"x..x..x", ".x..x..", "..x..x.", "x..x..x"} {
		o := f.NIC(uint64(seed)).Occasions()
		var got strings.Builder
		for range want {
			c := byte('.')
			if o.Due() {
				c = 'x'
			}
			got.WriteByte(c)
			o.Pass()
		}
		if got.String() != want {
			t.Errorf("seed %d: %s, not %s", seed, got.String(), want)
		}
	}
}

// docs/sabotage.md describes each fault.
func TestPageHasAllFaults(t *testing.T) {
	b, err := os.ReadFile("../../../docs/sabotage.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(b)
	for _, f := range Faults() {
		row := "| `" + f.Name + "` | " + strings.Join(slices.Delete(f.row(), 2, 3)[1:], " | ") + " |"
		what := "- `" + f.Name + "`: " + f.What
		if f.Why != "" {
			what += ". The kernel's tests do not see it: " + f.Why
		}
		for _, line := range []string{row, what + "."} {
			if !strings.Contains(strings.ReplaceAll(page, "\n  ", " "), line) {
				t.Errorf("docs/sabotage.md has no %s", line)
			}
		}
	}
}

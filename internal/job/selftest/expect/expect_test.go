package expect

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/job/selftest/results"
	"vnic.dev/vnic/internal/testkit"
)

// headings returns the headings of docs/found.md; none if the repository lacks this file.
func headings(t *testing.T) []string {
	text, err := os.ReadFile("../../../../docs/found.md")
	if errors.Is(err, fs.ErrNotExist) {
		return []string{}
	}
	testkit.OK(t, err)
	list := []string{}
	for _, m := range regexp.MustCompile(`(?m)^#+ +(.*?)\s*$`).FindAllStringSubmatch(string(text), -1) {
		list = append(list, m[1])
	}
	return list
}

// unwritten lists, by file, the suite's programs without expectations in the column unmodified.
var unwritten = map[string]string{
	"gve-7.2":    "hw/ipsec_vxlan.py psp.py",
	"gve-7.3":    "hw/ipsec_vxlan.py psp.py",
	"virtio-7.2": "hw/ipsec_vxlan.py psp.py",
	"virtio-7.3": "hw/ipsec_vxlan.py psp.py",
}

// Invariant: selftest: Every expected result of a selftest that is neither a pass nor an xfail has
// a reason with evidence.
func TestWhatIsWrittenDownIsSound(t *testing.T) {
	found := headings(t)
	n := 0
	for _, path := range testkit.Must(filepath.Glob("models/*.yaml"))(t) {
		base := strings.TrimSuffix(filepath.Base(path), ".yaml")
		pos := strings.LastIndexByte(base, '-')
		model, kernel := base[:pos], base[pos+1:]
		suite, err := SuiteOf(kernel + ".0")
		testkit.OK(t, err)
		x, err := Parse(path, testkit.Must(os.ReadFile(path))(t), suite, found)
		if err != nil {
			t.Error(err)
			continue
		}
		testkit.Equal(t, path+": model", x.File.Model, model)
		var not []string
		for _, name := range slices.Sorted(maps.Keys(suite.Programs)) {
			if _, ok := x.File.Programs[name][results.Unmodified]; !ok {
				not = append(not, name)
			}
		}
		if model != "virtio-xdp" { // a file of virtio-xdp has only the differences from virtio
			testkit.Equal(t, path+": programs that are not judged", strings.Join(not, " "), unwritten[base])
		}
		n++
	}
	if n < 2 {
		t.Errorf("%d files", n)
	}
}

// Each suite has patches with the numbers of the patch files.
func TestPatchesAreThere(t *testing.T) {
	for _, kernel := range []string{"7.2.0", "7.3.0"} {
		patchesAreThere(t, testkit.Must(SuiteOf(kernel))(t))
	}
}

func patchesAreThere(t *testing.T, suite *Suite) {
	named := map[string]string{}
	for name, p := range suite.Patches {
		for _, n := range p.Numbers {
			named[fmt.Sprintf("%04d", n)] = name
		}
		if p.Does == "" || len(p.Numbers) == 0 {
			t.Errorf("%s: %+v", name, p)
		}
	}
	const patches = "../../../../internal/machine/assets/selftests/patches"
	for _, file := range testkit.Must(filepath.Glob(patches + "/*.patch"))(t) {
		number, _, _ := strings.Cut(filepath.Base(file), "-")
		if named[number] == "" {
			t.Errorf("%s: no name has this number", file)
		}
		delete(named, number)
	}
	if len(named) > 0 {
		t.Errorf("there are no such patches: %v", named)
	}
}

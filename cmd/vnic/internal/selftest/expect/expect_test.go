package expect

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"vnic.dev/vnic/cmd/vnic/internal/selftest/results"
	"vnic.dev/vnic/internal/testkit"
)

// headings are those of docs/found.md; of a repository without that file there are none.
func headings(t *testing.T) []string {
	text, err := os.ReadFile("../../../../../docs/found.md")
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

// unwritten are programs of which nothing is written down, by file: each is work to be done, and none is forgotten.
var unwritten = map[string]string{
	"gve-7.2":    "hw/ipsec_vxlan.py psp.py",
	"virtio-7.2": "gro.py hw/ipsec_vxlan.py hw/rss_api.py hw/rss_ctx.py hw/rss_drv.py hw/uso.py psp.py",
}

// Invariant: selftest: Every result of a selftest that is expected and is no pass has a reason with evidence.
func TestWhatIsWrittenDownIsSound(t *testing.T) {
	found := headings(t)
	n := 0
	for _, path := range testkit.Must(filepath.Glob("models/*.yaml"))(t) {
		base := strings.TrimSuffix(filepath.Base(path), ".yaml")
		model, kernel, _ := strings.Cut(base, "-")
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
		testkit.Equal(t, path+": programs that are not judged", strings.Join(not, " "), unwritten[base])
		n++
	}
	if n < 2 {
		t.Errorf("%d files", n)
	}
}

package toolimage

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"vnic.dev/vnic/internal/testkit"
)

func TestNamesAreGroupsOrPackages(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "none": "", "python": "python3-minimal", "net": "ethtool tcpdump iperf3 iputils-ping",
		"net,ethtool,g++": "ethtool tcpdump iperf3 iputils-ping g++", "python3.14,net,net": "python3.14 ethtool tcpdump " +
			"iperf3 iputils-ping",
	} {
		s, err := Parse(text)
		if got := strings.Join(s.Packages, " "); err != nil || got != want || s.NCDevmem {
			t.Errorf("%q: %q, %v; want %q", text, got, err, want)
		}
	}
	if s, err := Parse("ncdevmem"); err != nil || !s.NCDevmem || len(s.Packages) == 0 {
		t.Errorf("ncdevmem: %+v, %v", s, err)
	}
	long := strings.Repeat("x", MaxName)
	many := make([]string, MaxNames+1)
	for i := range many {
		many[i] = long[:i+2]
	}
	for text, says := range map[string]string{
		"net,none": "stands alone", "Net": "no name of a package", "net,,python": "no name of a package",
		"-o": "no name of a package", "x-": "no name of a package", "a=1": "no name of a package", "x": "no name",
		long + "x": long + "...", strings.Join(many, ","): "32 at most", "a/b": "no name", "lib.*": "no name",
	} {
		if _, err := Parse(text); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, want %q", text, err, says)
		}
	}
	_, err := Parse(long + "," + long[1:])
	testkit.NoError(t, err)
}

// Of programs with the same name, the first in the order of programDirs counts; links out of the tree do not count.
func TestProgramsOfATree(t *testing.T) {
	root := t.TempDir()
	for name, mode := range map[string]os.FileMode{"usr/sbin/a": 0o755, "usr/bin/a": 0o755, "usr/bin/b": 0o755,
		"usr/bin/data": 0o644, "usr/lib/c": 0o755, "usr/bin/with space": 0o755} {
		testkit.OK(t, os.MkdirAll(filepath.Join(root, filepath.Dir(name)), 0o755))
		testkit.OK(t, os.WriteFile(filepath.Join(root, name), nil, mode))
	}
	for link, to := range map[string]string{"usr/bin/link": "b", "usr/bin/dir": "../lib",
		"usr/bin/none": "/etc/alternatives/x", "usr/bin/out": "../../../../../../bin/sh"} {
		testkit.OK(t, os.Symlink(to, filepath.Join(root, link)))
	}
	list := testkit.Must(programs(root))(t)
	want := []Program{{Name: "a", Path: "/usr/sbin/a"}, {Name: "b", Path: "/usr/bin/b"},
		{Name: "link", Path: "/usr/bin/link"}}
	if diff := cmp.Diff(want, list); diff != "" {
		t.Error(diff)
	}
}

func TestListsOfProgramsAreRead(t *testing.T) {
	file := filepath.Join(t.TempDir(), "programs")
	for text, n := range map[string]int{"": 0, "a /usr/bin/a\nb /usr/bin/b\n": 2, "a\n": -1, "../a /x\n": -1,
		"a x\n": -1} {
		testkit.OK(t, os.WriteFile(file, []byte(text), 0o644))
		if list, err := readPrograms(file); (err != nil) != (n < 0) || len(list) != max(n, 0) {
			t.Errorf("%q: %v, %v", text, list, err)
		}
	}
}

func TestAlternativesOfPackages(t *testing.T) {
	root := t.TempDir()
	testkit.OK(t, os.MkdirAll(filepath.Join(root, "usr/bin"), 0o755))
	for _, name := range []string{"mawk", "nc.openbsd"} {
		testkit.OK(t, os.WriteFile(filepath.Join(root, "usr/bin", name), nil, 0o755))
	}
	testkit.OK(t, finish(t.Context(), root))
	for link, want := range map[string]string{"usr/bin/awk": "mawk", "usr/bin/nc": "nc.openbsd", "bin": "usr/bin"} {
		testkit.Equal(t, link, testkit.Must(os.Readlink(filepath.Join(root, link)))(t), want)
	}
}

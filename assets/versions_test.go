package assets

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/mod/semver"
	"vnic.dev/vnic/internal/testkit"
)

var update = flag.Bool("update", false,
	"write versions.lock from what the cache holds, after every test has passed with it")

const lockHead = `# What vnic is tested with. Fetch takes these versions while a suite has them, else the nearest, and says so.
# Made by: go test ./assets -run TestVersionsLockIsCurrent -update
#
# total ROLE DOWNLOAD DISK, all packages of a role together, bytes
# ROLE PACKAGE VERSION BYTES SHA-256; a role's first package gives its version

`

// lockNames are the packages of the closure that make up QEMU itself; libraries may differ.
var lockNames = []string{"qemu-system-x86", "qemu-system-common", "qemu-system-data", "seabios"}

// formatVersions is the other direction of parseVersions; head is the file's comment.
func formatVersions(t *tested, head string) string {
	var b strings.Builder
	b.WriteString(head)
	fmt.Fprintf(&b, "suites %s\n", strings.Join(t.suites, " "))
	for _, role := range []string{roleQEMU, roleKernel} {
		s := t.fetch[role]
		fmt.Fprintf(&b, "\ntotal %s %d %d\n", role, s.download, s.disk)
		for _, key := range t.order {
			if p := t.packages[key]; strings.HasPrefix(key, role+" ") {
				fmt.Fprintf(&b, "%s %s %s %d %s\n", role, p.Name, p.Version, p.Size, p.SHA256)
			}
		}
	}
	return b.String()
}

func TestVersionsLockIsCurrent(t *testing.T) {
	got, err := parseVersions(versionsLock)
	testkit.OK(t, err)
	if *update {
		r := fetched(t)
		have, err := cache{r.Cache}.load()
		testkit.OK(t, err)
		got = &tested{suites: got.suites, packages: map[string]Package{}, fetch: map[string]sizes{}}
		for _, role := range roles {
			tr := *have.tree(role.name)
			s := sizes{disk: tr.Disk}
			byName := map[string]Package{}
			names := lockNames
			for _, p := range tr.Packages {
				byName[p.Name] = p
				s.download += p.Size
				if role.name == roleKernel {
					names = append(names[:len(names):len(names)], p.Name)
				}
			}
			got.fetch[role.name] = s
			for _, n := range names {
				if p, ok := byName[n]; ok {
					got.packages[role.name+" "+n] = p
					got.order = append(got.order, role.name+" "+n)
				}
			}
		}
		testkit.OK(t, os.WriteFile("versions.lock", []byte(formatVersions(got, lockHead)), 0o644))
		return
	}
	if want := formatVersions(got, lockHead); want != versionsLock {
		t.Errorf("versions.lock is not as it would be written:\n%s", want)
	}
	for _, role := range roles {
		if got.version(role.name) == "" || got.fetch[role.name].download == 0 {
			t.Errorf("versions.lock lacks %s", role.name)
		}
	}
	if v := upstream(got.version(roleQEMU)); semver.Compare(v, upstream(MinVFIOUser)) < 0 {
		t.Errorf("versions.lock names QEMU %s, older than %s", v, MinVFIOUser)
	}
}

func TestParseVersionsRefusesWhatItDoesNotKnow(t *testing.T) {
	sum := strings.Repeat("0", 64)
	for name, text := range map[string]string{
		"empty":        "",
		"no suites":    "qemu q 1 2 " + sum,
		"word":         "suites a\nfoo bar",
		"size":         "suites a\nqemu q 1 x " + sum,
		"short hash":   "suites a\nqemu q 1 2 abcd",
		"total":        "suites a\ntotal qemu 1 x",
		"missing part": "suites a\nqemu q 1 " + sum,
	} {
		if _, err := parseVersions(text); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestUpstreamVersion(t *testing.T) {
	for in, want := range map[string]string{
		"1:11.1.2+ds-3":            "v11.1.2",
		"1:10.0.13+ds-0+deb13u1":   "v10.0.13",
		"7.2.12-1~bpo13+1":         "v7.2.12",
		"10.0":                     "v10.0.0",
		"8":                        "v8.0.0",
		"1:1.2.03.4-5":             "v1.2.3",
		"7.2.12+deb14-cloud-amd64": "v7.2.12",
		"":                         "v0.0.0",
		"nonsense":                 "v0.0.0",
	} {
		if got := upstream(in); got != want {
			t.Errorf("upstream(%q) = %s, want %s", in, got, want)
		}
	}
}

func TestNearestVersion(t *testing.T) {
	const want = "11.1.2"
	order := []string{"11.1.2", "11.1.3", "11.1.1", "11.1.5", "11.2.0", "11.0.9", "11.3.1", "12.0.0", "10.9.9", "8.0.0"}
	for i := 1; i < len(order); i++ {
		a, b := distance(order[i-1], want), distance(order[i], want)
		if !less(a, b) {
			t.Errorf("%s (%v) is not nearer to %s than %s (%v)", order[i-1], a, want, order[i], b)
		}
	}
}

func less(a, b [4]int) bool {
	for i := range a {
		if a[i] != b[i] {
			return a[i] < b[i]
		}
	}
	return false
}

func TestUntestedIsSaid(t *testing.T) {
	a, b := strings.Repeat("a", 64), strings.Repeat("b", 64)
	l, err := parseVersions("suites s\nqemu q 1:11.1.2-1 5 " + a + "\nqemu r 1.0 6 " + b)
	testkit.OK(t, err)
	for name, c := range map[string]struct {
		version string
		list    []Package
		want    string // in the line; "" = tested
		err     bool
	}{
		"as tested": {"1:11.1.2-1", []Package{{Name: "q", Version: "1:11.1.2-1", SHA256: a},
			{Name: "r", Version: "1.0", SHA256: b}}, "", false},
		"newer": {"1:11.1.3-1", nil, "1:11.1.3-1, tested with 1:11.1.2-1", false},
		"other part": {"1:11.1.2-1", []Package{{Name: "q", Version: "1:11.1.2-1", SHA256: a},
			{Name: "r", Version: "1.1", SHA256: a}}, "r 1.1", false},
		"lacks part":  {"1:11.1.2-1", []Package{{Name: "q", Version: "1:11.1.2-1", SHA256: a}}, "no r 1.0", false},
		"other bytes": {"1:11.1.2-1", []Package{{Name: "q", Version: "1:11.1.2-1", SHA256: b}}, "", true},
	} {
		line, err := l.untested(roleQEMU, c.version, c.list)
		if (err != nil) != c.err || (c.want == "") != (line == "") || !strings.Contains(line, c.want) {
			t.Errorf("%s: %q, %v", name, line, err)
		}
	}
}

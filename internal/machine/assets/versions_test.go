package assets

import (
	"encoding/json"
	"flag"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

var update = flag.Bool("update", false,
	"write versions.lock from what the cache holds, after every test has passed with it")

// lockNames are QEMU's packages that versions.lock names.
var lockNames = []string{"qemu-system-x86", "qemu-system-common", "qemu-system-data", "seabios"}

func (t *tested) format(tb testing.TB) string {
	tb.Helper()
	b := testkit.Must(json.MarshalIndent(t, "", "\t"))(tb)
	return string(b) + "\n"
}

func TestVersionsLockIsCurrent(t *testing.T) {
	if *update {
		r := fetched(t)
		have := testkit.Must(cache{r.Cache}.load())(t)
		now := &tested{About: lock.About, Suites: lock.Suites, Roles: map[string]members{}}
		for _, role := range roles {
			tr := have[role.Name]
			m := &members{Disk: tr.Disk}
			for _, p := range tr.Packages {
				m.Download += p.Size
				if role.Name == roleKernel || slices.Contains(lockNames, p.Name) {
					m.Packages = append(m.Packages, p)
				}
			}
			slices.SortStableFunc(m.Packages, func(a, b Package) int {
				return slices.Index(lockNames, a.Name) - slices.Index(lockNames, b.Name)
			})
			now.Roles[role.Name] = *m
		}
		testkit.OK(t, os.WriteFile("versions.lock", []byte(now.format(t)), 0o644))
		return
	}
	if want := lock.format(t); want != versionsLock {
		t.Errorf("versions.lock is not as it would be written:\n%s", want)
	}
	for _, role := range roles {
		if lock.version(role.Name) == "" || lock.Roles[role.Name].Download == 0 {
			t.Errorf("versions.lock lacks %s", role.Name)
		}
		for _, p := range lock.Roles[role.Name].Packages {
			if p.Name == "" || p.Version == "" || p.Size == 0 || !regexp.MustCompile(`^[0-9a-f]{64}$`).MatchString(p.SHA256) {
				t.Errorf("versions.lock: %s: %+v", role.Name, p)
			}
		}
	}
	if len(lock.Suites) == 0 {
		t.Error("versions.lock: no suites")
	}
	if v := lock.version(roleQEMU); older(v, MinVFIOUser) {
		t.Errorf("versions.lock names QEMU %s, older than %s", v, MinVFIOUser)
	}
}

func TestUpstreamVersion(t *testing.T) {
	for in, want := range map[string]string{
		"1:11.1.2+ds-3":            "11.1.2",
		"1:10.0.13+ds-0+deb13u1":   "10.0.13",
		"7.2.12-1~bpo13+1":         "7.2.12",
		"10.0":                     "10.0.0",
		"8":                        "8.0.0",
		"1:1.2.03.4-5":             "1.2.3",
		"7.2.12+deb14-cloud-amd64": "7.2.12",
		"":                         "0.0.0",
		"nonsense":                 "0.0.0",
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
		if slices.Compare(a[:], b[:]) >= 0 {
			t.Errorf("%s (%v) is not nearer to %s than %s (%v)", order[i-1], a, want, order[i], b)
		}
	}
}

func TestUntestedIsSaid(t *testing.T) {
	a, b := strings.Repeat("a", 64), strings.Repeat("b", 64)
	l := &tested{Roles: map[string]members{roleQEMU: {Packages: []Package{{Name: "q", Version: "1:11.1.2-1", SHA256: a},
		{Name: "r", Version: "1.0", SHA256: b}}}}}
	for name, c := range map[string]struct {
		version string
		list    []Package
		want    string // "" = as tested, or an error
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

package assets

import (
	"cmp"
	_ "embed"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/mod/semver"
)

// The oldest QEMU that will do: MinQEMU as vhost-user's frontend, where older ones crash at the
// guest's probe; MinVFIOUser with vfio-user-pci, which older ones do not have. What is fetched does
// both.
const (
	MinQEMU     = "10.0"
	MinVFIOUser = "10.1"
)

func older(version, than string) bool { return semver.Compare(upstream(version), upstream(than)) < 0 }

//go:embed versions.lock
var versionsLock string

// tested is versions.lock: what the project was tested with.
type tested struct {
	suites   []string           // where to look, best first
	packages map[string]Package // by role and name, "qemu qemu-system-x86"
	order    []string           // keys of packages as they stand in the file
	fetch    map[string]sizes   // by role
}

// sizes is what a role's packages need.
type sizes struct{ download, disk int64 }

// The roles of packages, the words of versions.lock.
const (
	roleQEMU   = "qemu"
	roleKernel = "kernel"
)

// lock is versions.lock; that it parses is a test's business.
var lock = func() *tested {
	t, err := parseVersions(versionsLock)
	if err != nil {
		return &tested{}
	}
	return t
}()

// parseVersions reads versions.lock: "suites NAME...", "ROLE PACKAGE VERSION SIZE SHA256", "total
// ROLE DOWNLOAD DISK".
func parseVersions(text string) (*tested, error) {
	t := &tested{packages: map[string]Package{}, fetch: map[string]sizes{}}
	for i, line := range strings.Split(text, "\n") {
		line, _, _ = strings.Cut(line, "#")
		f := strings.Fields(line)
		bad := func() error { return fmt.Errorf("versions.lock:%d: cannot read %q", i+1, line) }
		switch {
		case len(f) == 0:
		case f[0] == "suites" && len(f) > 1:
			t.suites = f[1:]
		case f[0] == "total" && len(f) == 4:
			down, err1 := strconv.ParseInt(f[2], 10, 64)
			disk, err2 := strconv.ParseInt(f[3], 10, 64)
			if err1 != nil || err2 != nil {
				return nil, bad()
			}
			t.fetch[f[1]] = sizes{download: down, disk: disk}
		case (f[0] == roleQEMU || f[0] == roleKernel) && len(f) == 5:
			size, err := strconv.ParseInt(f[3], 10, 64)
			if err != nil || len(f[4]) != 64 {
				return nil, bad()
			}
			key := f[0] + " " + f[1]
			t.packages[key] = Package{Name: f[1], Version: f[2], Size: size, SHA256: f[4]}
			t.order = append(t.order, key)
		default:
			return nil, bad()
		}
	}
	if len(t.suites) == 0 {
		return nil, fmt.Errorf("versions.lock: no suites")
	}
	return t, nil
}

// version gives the tested version of a role: that of its first package.
func (t *tested) version(role string) string {
	for _, key := range t.order {
		if strings.HasPrefix(key, role+" ") {
			return t.packages[key].Version
		}
	}
	return ""
}

// untested compares what was resolved with the lock, and says how it differs; "" = as tested. A
// package of the tested version with another hash is an error: an archive never builds a version
// twice.
func (t *tested) untested(role, version string, got []Package) (string, error) {
	if want := t.version(role); version != want {
		return fmt.Sprintf("%s %s, tested with %s", role, version, cmp.Or(want, "none")), nil
	}
	byName := map[string]Package{}
	for _, p := range got {
		byName[p.Name] = p
	}
	var diff []string
	for _, key := range t.order {
		if !strings.HasPrefix(key, role+" ") {
			continue
		}
		want := t.packages[key]
		switch p, ok := byName[want.Name]; {
		case !ok:
			diff = append(diff, fmt.Sprintf("no %s %s", want.Name, want.Version))
		case p.Version != want.Version:
			diff = append(diff, fmt.Sprintf("%s %s, tested with %s", p.Name, p.Version, want.Version))
		case p.SHA256 != want.SHA256:
			return "", fmt.Errorf("%s %s: SHA-256 %s, not the %s of versions.lock: "+
				"the mirror serves another package under this version",
				p.Name, p.Version, p.SHA256, want.SHA256)
		}
	}
	if len(diff) == 0 {
		return "", nil
	}
	return role + " " + version + " with other parts: " + strings.Join(diff, "; "), nil
}

// upstream gives the upstream part of a Debian version as a semantic version: "1:11.1.2+ds-3" is
// "v11.1.2".
func upstream(v string) string {
	if _, after, ok := strings.Cut(v, ":"); ok {
		v = after
	}
	n := strings.IndexFunc(v, func(r rune) bool { return r != '.' && (r < '0' || r > '9') })
	if n >= 0 {
		v = v[:n]
	}
	parts := strings.Split(strings.Trim(v, "."), ".")
	if len(parts) > 3 {
		parts = parts[:3]
	}
	for i, p := range parts { // semver allows no leading zeros
		if p = strings.TrimLeft(p, "0"); p == "" {
			p = "0"
		}
		parts[i] = p
	}
	s := semver.Canonical("v" + strings.Join(parts, "."))
	if s == "" {
		return "v0.0.0"
	}
	return s
}

// distance orders versions by how far they are from the tested one: major first, then minor, then
// patch; of two that are as far, the newer is nearer.
func distance(v, want string) [4]int {
	a, b := numbers(upstream(v)), numbers(upstream(want))
	var d [4]int
	for i := range a {
		d[i] = max(a[i]-b[i], b[i]-a[i])
	}
	if semver.Compare(upstream(v), upstream(want)) < 0 {
		d[3] = 1
	}
	return d
}

func numbers(v string) [3]int {
	var n [3]int
	for i, p := range strings.SplitN(strings.TrimPrefix(v, "v"), ".", 3) {
		n[i], _ = strconv.Atoi(p)
	}
	return n
}

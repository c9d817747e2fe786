package assets

import (
	"cmp"
	_ "embed"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// MinQEMU is the oldest QEMU for vhost-user: older ones crash when the guest probes the device. MinVFIOUser
// is the first with vfio-user-pci.
const (
	MinQEMU     = "10.0"
	MinVFIOUser = "10.1"
)

//go:embed versions.lock
var versionsLock string

// tested is versions.lock: the tested versions.
type tested struct {
	About  []string           `json:"about"`  // a comment
	Suites []string           `json:"suites"` // best first
	Roles  map[string]members `json:"roles"`
}

type members struct {
	Download int64     `json:"download"` // bytes
	Disk     int64     `json:"disk"`
	Packages []Package `json:"packages"` // the first one's version is the role's
}

// Roles of packages.
const (
	roleQEMU   = "qemu"
	roleKernel = "kernel"
)

// lock is versions.lock.
var lock = func() *tested {
	t := &tested{}
	_ = json.Unmarshal([]byte(versionsLock), t)
	return t
}()

// Suites returns the suites of QEMU and kernels, best first.
func Suites() []string { return slices.Clone(lock.Suites) }

// version returns the tested version of a role.
func (t *tested) version(role string) string {
	for _, p := range t.Roles[role].Packages {
		return p.Version
	}
	return ""
}

// untested describes what differs from the lock: the role's version, or else packages that got lacks, or has in other
// versions; "" = as tested. If the role's version is the tested one, a package of a tested version with another hash is
// an error: an archive does not build a version twice.
func (t *tested) untested(role, version string, got []Package) (string, error) {
	if want := t.version(role); version != want {
		return fmt.Sprintf("%s %s, tested with %s", role, version, cmp.Or(want, "none")), nil
	}
	var diff []string
	for _, want := range t.Roles[role].Packages {
		i := slices.IndexFunc(got, func(p Package) bool { return p.Name == want.Name })
		if i < 0 {
			diff = append(diff, fmt.Sprintf("no %s %s", want.Name, want.Version))
			continue
		}
		switch p := got[i]; {
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

var digits = regexp.MustCompile(`^(?:[^:]*:)?(\d+)(?:\.(\d+))?(?:\.(\d+))?`)

// numbers returns major, minor and patch of a version's upstream part: 11, 1 and 2 of "1:11.1.2+ds-3"; 0 if missing.
func numbers(v string) (n [3]int) {
	for i, text := range digits.FindStringSubmatch(v) {
		if i > 0 {
			n[i-1], _ = strconv.Atoi(text)
		}
	}
	return n
}

// upstream returns a version's numbers as text: "11.1.2".
func upstream(v string) string {
	n := numbers(v)
	return fmt.Sprintf("%d.%d.%d", n[0], n[1], n[2])
}

func older(version, than string) bool {
	a, b := numbers(version), numbers(than)
	return slices.Compare(a[:], b[:]) < 0
}

// distance returns v's distance from want, for slices.Compare: by major, minor, then patch; of two versions that
// are as far away the newer one is nearer.
func distance(v, want string) (d [4]int) {
	a, b := numbers(v), numbers(want)
	for i := range a {
		d[i] = max(a[i]-b[i], b[i]-a[i])
	}
	if older(v, want) {
		d[3] = 1
	}
	return d
}

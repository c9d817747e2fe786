package expect

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/agnivade/levenshtein"

	"vnic.dev/vnic/internal/job/selftest/ktap"
)

// Suite has the programs and cases of the tests of a series of kernels.
type Suite struct {
	// Kernel is the series, as "7.2".
	Kernel string `yaml:"kernel"`
	// Patches are vnic's changes of the tests, by name.
	Patches map[string]Patch `yaml:"patches"`
	// Programs has the cases of each program, in the order in which the program lists them with -l. A program that lists
	// none has no cases here, and is judged as a whole.
	Programs map[string][]string `yaml:"programs"`
}

// Patch is one of vnic's changes of the tests.
type Patch struct {
	Does    string `yaml:"does"`    // one sentence that describes the change
	Numbers []int  `yaml:"numbers"` // numbers of its patches in internal/machine/assets/selftests/patches
}

// Series returns the series of a kernel's release, as "7.2" of "7.2.12+deb13-cloud-amd64"; "": release is not one.
func Series(release string) string {
	major, rest, ok := strings.Cut(release, ".")
	minor := rest[:len(rest)-len(strings.TrimLeft(rest, "0123456789"))]
	if !ok || major == "" || minor == "" || strings.Trim(major, "0123456789") != "" {
		return ""
	}
	return major + "." + minor
}

// Asked reports whether a case matches one of the patterns, which are names or patterns of path.Match, as for
// ksft.py's -t. Without patterns it returns true.
func Asked(name string, patterns []string) bool {
	return len(patterns) == 0 || slices.ContainsFunc(patterns, func(p string) bool { return matches(p, name) })
}

func matches(pattern, name string) bool {
	ok, err := path.Match(pattern, name)
	return pattern == name || ok && err == nil
}

func (s *Suite) check() (errs []error) {
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if Series(s.Kernel) != s.Kernel || s.Kernel == "" {
		wrong("kernel: %q is no series, as 7.2", s.Kernel)
	}
	for _, name := range slices.Sorted(maps.Keys(s.Programs)) {
		seen := map[string]bool{}
		for _, c := range s.Programs[name] {
			if seen[c] {
				wrong("%s: case %s is listed twice", name, c)
			}
			seen[c] = true
			if c == "" || c == ktap.Whole || strings.ContainsAny(c, "*?[\\/ ") {
				wrong("%s: %q is no name of a case", name, c)
			}
		}
	}
	return errs
}

// like suggests the most similar name, for the end of an error; "": none is similar.
func like(name string, names []string) string {
	best, distance := "", 1+len(name)/3
	for _, n := range names {
		if d := levenshtein.ComputeDistance(name, n); d <= distance {
			best, distance = n, d-1
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf(": %s is meant?", best)
}

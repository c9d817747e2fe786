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

// Suite is what the tests of a series of kernels consist of.
type Suite struct {
	// Kernel is the series, as "7.2".
	Kernel string `yaml:"kernel"`
	// Patches are the changes of the tests that vnic has, by name.
	Patches map[string]Patch `yaml:"patches"`
	// Programs are the cases of each program, as it lists them with -l, in their order. One without cases is judged as a
	// whole only.
	Programs map[string][]string `yaml:"programs"`
}

// Patch is a change of the tests.
type Patch struct {
	Does    string `yaml:"does"`    // in a sentence
	Numbers []int  `yaml:"numbers"` // of the patches of internal/machine/assets/selftests/patches that make it
}

// Series is the series of a kernel's release, as uname -r has it: "7.2" of "7.2.12+deb13-cloud-amd64"; "": it has none.
func Series(release string) string {
	major, rest, ok := strings.Cut(release, ".")
	minor := rest[:len(rest)-len(strings.TrimLeft(rest, "0123456789"))]
	if !ok || major == "" || minor == "" || strings.Trim(major, "0123456789") != "" {
		return ""
	}
	return major + "." + minor
}

// Asked reports whether patterns ask for a case, by the rule of ksft.py's -t: a pattern is a name, or a pattern of
// shells. No pattern asks for all.
func Asked(name string, patterns []string) bool {
	return len(patterns) == 0 || slices.ContainsFunc(patterns, func(p string) bool { return matches(p, name) })
}

func matches(pattern, name string) bool {
	ok, err := path.Match(pattern, name)
	return pattern == name || ok && err == nil
}

// check returns all that is wrong with a suite.
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

// like suggests what a wrong name may be meant to be, for the end of an error; "" if nothing is near.
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

// Command coverage measures and compares the statement coverage of packages. See the head of
// tools/coverage.
package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"vnic.dev/vnic/tools/internal/heirs"
	"vnic.dev/vnic/tools/internal/tree"
)

const usage = `usage: tools/coverage [--times N] [--timeout T] [CHECKOUT [PACKAGE...]]
       tools/coverage --compare OLD NEW MAPPING
its head tells more`

// mayFall is how many percentage points the coverage of a group may be lower in the new results than in the old ones
// without an error.
const mayFall = 0.1

func main() {
	err := run(os.Args[1:], os.Stdout, os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Println(usage)
	} else if err != nil {
		fmt.Fprintln(os.Stderr, "coverage:", err)
		os.Exit(1)
	}
}

func run(args []string, out, errs io.Writer) error {
	flags := flag.NewFlagSet("coverage", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	times := flags.Int("times", 2, "")
	timeout := flags.String("timeout", "5m", "")
	compare := flags.Bool("compare", false, "")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return err
	} else if err != nil {
		return fmt.Errorf("%w\n%s", err, usage)
	}
	switch {
	case *compare && flags.NArg() == 3:
		return compareFiles(flags.Arg(0), flags.Arg(1), flags.Arg(2), out)
	case !*compare && flags.NArg() == 0 && *times > 0:
		return measure(".", nil, *times, *timeout, out, errs)
	case !*compare && flags.NArg() > 0 && *times > 0:
		return measure(flags.Arg(0), flags.Args()[1:], *times, *timeout, out, errs)
	}
	return errors.New(usage)
}

// covered counts the statements of a package, or of several: how many tests reached, and all.
type covered struct{ reached, all int }

func (c covered) percent() float64 {
	if c.all == 0 {
		return 100
	}
	return 100 * float64(c.reached) / float64(c.all)
}

// measure runs the tests of product packages of the checkout in dir, all if none is named, and prints each package's
// lowest coverage of several runs (times). If a package's tests fail but write a profile, measure goes on, and returns
// the error at its end.
func measure(dir string, packages []string, times int, timeout string, out, errs io.Writer) error {
	files, err := tree.Files(dir)
	if err != nil {
		return err
	}
	temp, err := os.MkdirTemp("", "coverage-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(temp) }()
	profile := filepath.Join(temp, "profile")
	all := slices.DeleteFunc(tree.Packages(files), func(pkg string) bool {
		return tree.ClassOf(pkg+"/x.go") != tree.Product
	})
	for _, pkg := range packages {
		if !slices.Contains(all, pkg) {
			return fmt.Errorf("%s: no product package of %s", pkg, dir)
		}
	}
	if len(packages) == 0 {
		packages = all
	}
	var failed []error
	for _, pkg := range packages {
		lowest := covered{-1, 0}
		for range times {
			fmt.Fprintln(errs, "coverage: testing", pkg)
			cmd := exec.Command("go", "test", "-count=1", "-timeout", timeout, "-coverprofile", profile, "./"+pkg)
			cmd.Dir = dir
			if err := os.RemoveAll(profile); err != nil { // of the run before
				return err
			}
			if says, err := cmd.CombinedOutput(); err != nil {
				failed = append(failed, fmt.Errorf("%s: %w\n%s", pkg, err, says))
			}
			c, err := readProfile(profile)
			if err != nil {
				return fmt.Errorf("%s: %w", pkg, err)
			}
			if lowest.reached >= 0 && c != lowest {
				fmt.Fprintf(errs, "coverage: %s differs: %.2f and %.2f %%\n", pkg, lowest.percent(), c.percent())
			}
			if lowest.reached < 0 || c.percent() < lowest.percent() {
				lowest = c
			}
		}
		if _, err := fmt.Fprintf(out, "%s %d %d %.2f\n", pkg, lowest.reached, lowest.all, lowest.percent()); err != nil {
			return err
		}
	}
	return errors.Join(failed...)
}

// readProfile counts the statements in a profile of go test (cmd/cover), whose lines are "BLOCK STATEMENTS COUNT". A
// block on several lines is counted once, and is reached if one of its counts is not 0.
func readProfile(file string) (covered, error) {
	src, err := os.ReadFile(file)
	if err != nil {
		return covered{}, err
	}
	var sum covered
	reached := map[string]bool{} // by block
	size := map[string]int{}
	for line := range strings.Lines(string(src)) {
		f := strings.Fields(line)
		if len(f) != 3 {
			continue // such as "mode: set"
		}
		n, err := strconv.Atoi(f[1])
		if err != nil {
			return covered{}, fmt.Errorf("profile: %q: %w", line, err)
		}
		size[f[0]] = n
		reached[f[0]] = reached[f[0]] || f[2] != "0"
	}
	for block, n := range size {
		if sum.all += n; reached[block] {
			sum.reached += n
		}
	}
	return sum, nil
}

func readFile(name string) (map[string]covered, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	found := map[string]covered{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		line := lines.Text()
		if line == "" || line[0] == '#' {
			continue
		}
		var pkg string
		var c covered
		if _, err := fmt.Sscan(line, &pkg, &c.reached, &c.all); err != nil || c.reached < 0 || c.reached > c.all {
			return nil, fmt.Errorf("%s: %q: not PACKAGE COVERED STATEMENTS PERCENT", name, line)
		}
		found[pkg] = c
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%s: no packages", name)
	}
	return found, nil
}

func compareFiles(oldFile, newFile, mapping string, out io.Writer) error {
	old, err := readFile(oldFile)
	if err != nil {
		return err
	}
	now, err := readFile(newFile)
	if err != nil {
		return err
	}
	rules, err := heirs.Read(mapping)
	if err != nil {
		return err
	}
	var wrong []error
	for _, g := range groups(old, rules) {
		before, after := covered{}, covered{}
		missing := false
		for _, pkg := range g.old {
			before.reached += old[pkg].reached
			before.all += old[pkg].all
		}
		for _, pkg := range g.now {
			c, ok := now[pkg]
			if !ok {
				wrong = append(wrong, fmt.Errorf("%s: not measured anew: it is the heir of %s", pkg, strings.Join(g.old, ", ")))
				missing = true
			}
			after.reached += c.reached
			after.all += c.all
		}
		if missing || before.all == 0 {
			continue
		}
		change := after.percent() - before.percent()
		names := strings.Join(g.old, " ")
		if to := strings.Join(g.now, " "); to != names {
			names += " -> " + to
		}
		if change != 0 {
			fmt.Fprintf(out, "%7.2f %% %7.2f %% %+6.2f  %s\n", before.percent(), after.percent(), change, names)
		}
		if change < -mayFall-1e-9 {
			wrong = append(wrong, fmt.Errorf("%s: %.2f %%, before %.2f %%: test what is not covered: %d statements, before %d",
				names, after.percent(), before.percent(), after.all-after.reached, before.all-before.reached))
		}
	}
	return errors.Join(wrong...)
}

// group has packages of the old results (old), and the packages that have their code now.
type group struct{ old, now []string }

// groups divides the old packages into groups. Two packages are in one group if their code is in the same package now,
// or if both are in one group with a third.
func groups(old map[string]covered, rules *heirs.Rules) []group {
	var all []group
	for _, pkg := range slices.Sorted(maps.Keys(old)) {
		g := group{[]string{pkg}, slices.Clone(rules.Packages(pkg))}
		all = slices.DeleteFunc(all, func(other group) bool {
			mixed := slices.ContainsFunc(other.now, func(p string) bool { return slices.Contains(g.now, p) })
			if mixed {
				g.old, g.now = append(other.old, g.old...), append(other.now, g.now...)
			}
			return mixed
		})
		slices.Sort(g.now)
		g.now = slices.Compact(g.now)
		all = append(all, g)
	}
	return all
}

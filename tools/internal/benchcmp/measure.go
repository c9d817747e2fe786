package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"vnic.dev/vnic/tools/internal/entry"
	"vnic.dev/vnic/tools/internal/heirs"
)

// attempts is how many failures of a benchmark binary in a row end the comparison.
const attempts = 3

type comparison struct {
	base, now string // commits; now may be empty: the checkout as it is
	pairs     int
	benchtime string
	core      int
	packages  []string // names in the base
	rules     *heirs.Rules
	temp      string
	errs      io.Writer
}

// The sides of a comparison: the base, the base once more, to compare it with itself, and the new code.
const (
	sideBase = "base"
	sideSame = "aa"
	sideNew  = "new"
)

type binary struct{ pkg, dir, file string }

// measure runs the benchmarks of the base and of the new code. For each package of the base that has
// results it writes each side's results, by the base's names of benchmarks, to dir/PACKAGE.SIDE (with _ for / in
// PACKAGE).
func (c *comparison) measure(ctx context.Context, dir string) (err error) {
	base, end, err := c.worktree(ctx, c.base)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	now := "."
	if c.now != "" {
		var end func() error
		if now, end, err = c.worktree(ctx, c.now); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, end()) }()
	}
	top, err := output(ctx, now, "git", "rev-parse", "--show-toplevel")
	if err != nil {
		return err
	}

	old, err := c.build(ctx, base, sideBase, c.packages)
	if err != nil {
		return err
	}
	built, err := c.build(ctx, strings.TrimSpace(top), sideNew, c.newPackages())
	if err != nil {
		return err
	}
	sides := []struct {
		name     string
		binaries []binary
	}{{sideBase, old}, {sideSame, old}, {sideNew, built}}
	samples := map[string][]sample{}
	for round := range c.pairs {
		fmt.Fprintf(c.errs, "benchcmp: round %d of %d\n", round+1, c.pairs)
		for i := range sides {
			s := sides[(round+i)%len(sides)] // successive rounds begin with another side
			for _, b := range s.binaries {
				found, err := c.run(ctx, b)
				if err != nil {
					return fmt.Errorf("%s: %w", s.name, err)
				}
				samples[s.name] = append(samples[s.name], found...)
			}
		}
	}
	return write(dir, samples, c.rules)
}

// newPackages returns the packages that, by the mapping c.rules, now have the code or benchmarks of c.packages.
func (c *comparison) newPackages() []string {
	var all []string
	for _, pkg := range c.packages {
		all = append(all, c.rules.Packages(pkg)...)
		all = append(all, c.rules.BenchmarksOf(pkg)...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// worktree adds a git worktree of a commit, and returns the worktree's path and a function that removes the worktree.
func (c *comparison) worktree(ctx context.Context, commit string) (string, func() error, error) {
	if _, err := output(ctx, ".", "git", "rev-parse", "--verify", "--quiet", commit+"^{commit}"); err != nil {
		return "", nil, fmt.Errorf("no commit %s here: git fetch --unshallow, if this clone is shallow", commit)
	}
	dir := filepath.Join(c.temp, "tree-"+commit)
	if _, err := output(ctx, ".", "git", "worktree", "add", "--quiet", "--detach", dir, commit); err != nil {
		return "", nil, err
	}
	return dir, func() error {
		_, err := output(context.WithoutCancel(ctx), ".", "git", "worktree", "remove", "--force", dir)
		return err
	}, nil
}

// build compiles the tests of packages in tree, one binary a package; it skips packages that have no tests.
func (c *comparison) build(ctx context.Context, tree, side string, packages []string) ([]binary, error) {
	var all []binary
	for _, pkg := range packages {
		b := binary{pkg, filepath.Join(tree, pkg), filepath.Join(c.temp, side+"-"+flat(pkg))}
		tests, err := filepath.Glob(filepath.Join(b.dir, "*_test.go"))
		if err != nil {
			return nil, err
		}
		if len(tests) == 0 {
			fmt.Fprintf(c.errs, "benchcmp: %s: %s has no tests\n", side, pkg)
			continue
		}
		if _, err := output(ctx, tree, "go", "test", "-c", "-trimpath", "-o", b.file, "./"+pkg); err != nil {
			return nil, err
		}
		all = append(all, b)
	}
	return all, nil
}

type sample struct{ pkg, name, rest string }

// run runs the benchmarks of a binary, and again if that fails: at most attempts times, and for at most 10 minutes in
// all. It returns the results of the run that succeeds.
func (c *comparison) run(ctx context.Context, b binary) ([]sample, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	for try := 1; ; try++ {
		out, err := output(ctx, b.dir, "taskset", "-c", strconv.Itoa(c.core), b.file, "-test.run", "^$", "-test.bench", ".",
			"-test.benchmem", "-test.benchtime", c.benchtime)
		if err == nil {
			return samplesOf(b.pkg, out), nil
		}
		if ctx.Err() != nil || try == attempts {
			return nil, fmt.Errorf("benchmarks of %s: %w", b.pkg, err)
		}
		fmt.Fprintf(c.errs, "benchcmp: once more: benchmarks of %s: %v\n", b.pkg, err)
	}
}

// samplesOf returns the benchmarks' results in the output of pkg's binary.
func samplesOf(pkg, out string) []sample {
	var all []sample
	for line := range strings.Lines(out) {
		name, rest, ok := strings.Cut(strings.TrimSpace(line), "\t")
		name = strings.TrimSpace(name)
		if ok && strings.HasPrefix(name, "Benchmark") && strings.Contains(rest, "/op") && !strings.Contains(name, " ") {
			all = append(all, sample{pkg, name, rest})
		}
	}
	return all
}

func (s sample) benchmark() entry.Entry {
	e := entry.Entry{Kind: entry.Bench, Package: s.pkg, Name: s.name}
	if strings.Contains(s.name, "/") {
		e.Kind = entry.Sub
	}
	return e
}

// write writes the samples to files of dir, by the base's packages and names of benchmarks. It leaves out a sample of
// the new side whose benchmark the base does not have; a benchmark of the base that has no heir is an error.
func write(dir string, samples map[string][]sample, rules *heirs.Rules) error {
	there := map[entry.Entry]bool{}
	for _, s := range samples[sideNew] {
		there[s.benchmark()] = true
	}
	heirOf := map[entry.Entry][]entry.Entry{}
	var wrong []error
	done := map[entry.Entry]bool{}
	for _, s := range samples[sideBase] {
		old := s.benchmark()
		if done[old] {
			continue
		}
		done[old] = true
		candidates := rules.Candidates(old)
		i := slices.IndexFunc(candidates, func(e entry.Entry) bool { return there[e] })
		if i < 0 {
			wrong = append(wrong, fmt.Errorf("%s has no heir: say in the mapping what it is called now", old))
			continue
		}
		heirOf[candidates[i]] = append(heirOf[candidates[i]], old)
	}
	if err := errors.Join(wrong...); err != nil {
		return err
	}
	files := map[string]*bytes.Buffer{}
	add := func(pkg, side, name, rest string) {
		file := flat(pkg) + "." + side
		if files[file] == nil {
			files[file] = &bytes.Buffer{}
			fmt.Fprintf(files[file], "pkg: %s\n", pkg)
		}
		fmt.Fprintf(files[file], "%s\t%s\n", name, rest)
	}
	for side, all := range samples {
		for _, s := range all {
			if side != sideNew {
				add(s.pkg, side, s.name, s.rest)
				continue
			}
			for _, old := range heirOf[s.benchmark()] {
				add(old.Package, side, old.Name, s.rest)
			}
		}
	}
	if len(files) == 0 {
		return errors.New("no benchmarks: nothing was measured")
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), text.Bytes(), 0o666); err != nil {
			return err
		}
	}
	return nil
}

func flat(pkg string) string { return strings.ReplaceAll(pkg, "/", "_") }

func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		says := append(bytes.TrimSpace(out), stderr.Bytes()...)
		return "", fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, says[max(0, len(says)-4096):])
	}
	return string(out), nil
}

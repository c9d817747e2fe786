package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"vnic.dev/vnic/tools/internal/entry"
	"vnic.dev/vnic/tools/internal/tree"
)

func list(args []string, out, errs io.Writer) error {
	flags := flag.NewFlagSet("list", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	results := flags.String("results", "", "")
	run := flags.Bool("run", false, "")
	timeout := flags.String("timeout", "9m", "")
	if err := flags.Parse(args); err != nil || flags.NArg() > 1 {
		return wrongUse(err)
	}
	dir := "."
	if flags.NArg() == 1 {
		dir = flags.Arg(0)
	}
	files, err := tree.Files(dir)
	if err != nil {
		return err
	}
	all, err := static(dir, files)
	if err != nil {
		return err
	}
	if *run {
		if *results == "" {
			if *results, err = os.MkdirTemp("", "inventory-*"); err != nil {
				return err
			}
			defer func() { _ = os.RemoveAll(*results) }()
		}
		if err := runTests(dir, *results, *timeout, files, errs); err != nil {
			return err
		}
	}
	if *results != "" {
		ran, err := readResults(*results, errs)
		if err != nil {
			return err
		}
		all = append(all, ran...)
	}
	return entry.Write(out, entry.Sort(all))
}

// runTests runs the tests and benchmarks of each package that has test files, but no file in the directory results yet,
// and writes their output there. A test that fails is no error.
func runTests(dir, results, timeout string, files []string, errs io.Writer) error {
	results, err := filepath.Abs(results)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(results, 0o777); err != nil {
		return err
	}
	for _, pkg := range tree.Packages(files) {
		tests := func(name string) bool { return path.Dir(name) == pkg && strings.HasSuffix(name, "_test.go") }
		file := filepath.Join(results, strings.ReplaceAll(pkg, "/", "_")+".json")
		if _, err := os.Stat(file); err == nil || !slices.ContainsFunc(files, tests) {
			continue
		}
		fmt.Fprintln(errs, "inventory: testing", pkg)
		f, err := os.Create(file + ".new")
		if err != nil {
			return err
		}
		cmd := exec.Command("go", "test", "-json", "-bench", ".", "-benchtime", "1x", "-timeout", timeout, "./"+pkg)
		cmd.Dir, cmd.Stdout, cmd.Stderr = dir, f, errs
		err = cmd.Run()
		if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
			return errors.Join(err, f.Close())
		}
		if err := f.Close(); err != nil {
			return err
		}
		if err := os.Rename(file+".new", file); err != nil {
			return err
		}
	}
	return nil
}

type event struct{ Action, Package, Test, Output string }

func readResults(dir string, errs io.Writer) ([]entry.Entry, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("results in %s: %w: files *.json of go test -json", dir, fs.ErrNotExist)
	}
	var all []entry.Entry
	for _, name := range names {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		found, err := readEvents(f, errs)
		f.Close()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, found...)
	}
	return all, nil
}

// readEvents reads the output of go test -json, and returns the tests, fuzz targets, benchmarks and examples that have
// started, with their parts. A package whose tests did not end is an error.
func readEvents(r io.Reader, errs io.Writer) ([]entry.Entry, error) {
	var all []entry.Entry
	open := map[string]bool{}
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 && line[0] == '{' {
			var e event
			if err := json.Unmarshal(line, &e); err != nil {
				return nil, fmt.Errorf("%w: %.100q", err, line)
			}
			switch e.Action {
			case "start":
				open[e.Package] = true
			case "run":
				if found, ok := ofRun(e); ok {
					all = append(all, found)
				}
			case "pass", "fail", "skip":
				if e.Test == "" {
					delete(open, e.Package)
				}
				if e.Action != "pass" {
					fmt.Fprintf(errs, "inventory: %s: %s %s\n", e.Action, e.Package, e.Test)
				}
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
	}
	for pkg := range open {
		return nil, fmt.Errorf("tests of %s did not end: run them again", pkg)
	}
	return all, nil
}

// ofRun returns the entry of the test, fuzz target, benchmark or example, or of the part of one, that an event starts;
// false: the name is none of these.
func ofRun(e event) (entry.Entry, bool) {
	found := entry.Entry{Package: strings.TrimPrefix(e.Package, tree.Module+"/"), Name: e.Test}
	part := strings.Contains(e.Test, "/")
	for _, k := range []struct{ prefix, whole, part string }{
		{"Test", entry.Test, entry.Subtest}, {"Fuzz", entry.Fuzz, entry.Corpus},
		{"Benchmark", entry.Bench, entry.Sub}, {"Example", entry.Example, ""},
	} {
		if strings.HasPrefix(e.Test, k.prefix) {
			if found.Kind = k.whole; part {
				found.Kind = k.part
			}
			return found, found.Kind != ""
		}
	}
	return found, false
}

// Package golden compares the texts that a test makes with golden files.
//
// [Check] compares all golden files of a directory (NAME.txt): a file for which the test makes no text is an
// error, too. With the flag -update it writes the files anew, and removes the files without a text.
package golden

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files anew, in the place of comparing with them")

// Updating reports whether -update is set.
func Updating() bool { return *update }

const suffix = ".txt"

// Check compares the golden files of a directory with got, the texts by the files' names without ".txt". With
// -update it first writes the texts to the files, and removes golden files that have no text in got.
func Check(t testing.TB, dir string, got map[string]string) {
	t.Helper()
	if *update {
		if err := write(dir, got); err != nil {
			t.Fatal(err)
		}
	}
	for _, err := range compare(dir, got) {
		t.Error(err)
	}
}

func compare(dir string, got map[string]string) (errs []error) {
	want, err := Read(dir)
	if err != nil {
		return []error{err}
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if _, ok := got[name]; !ok {
			errs = append(errs, fmt.Errorf("%s: no test makes this file any more", filepath.Join(dir, name+suffix)))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(got)) {
		path := filepath.Join(dir, name+suffix)
		frozen, ok := want[name]
		if !ok {
			errs = append(errs, fmt.Errorf("%s: there is no such file: -update writes it", path))
		} else if d := differs(frozen, got[name]); d != "" {
			errs = append(errs, fmt.Errorf("%s: %s", path, d))
		}
	}
	return errs
}

// Read returns the contents of a directory's golden files, by their names without ".txt"; none if there is no
// such directory.
func Read(dir string) (map[string]string, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*"+suffix))
	files := make(map[string]string)
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		files[strings.TrimSuffix(filepath.Base(path), suffix)] = string(b)
	}
	return files, err
}

func write(dir string, got map[string]string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	old, err := Read(dir)
	if err != nil {
		return err
	}
	for name := range old {
		if _, ok := got[name]; !ok {
			if err := os.Remove(filepath.Join(dir, name+suffix)); err != nil {
				return err
			}
		}
	}
	for name, text := range got {
		if err := os.WriteFile(filepath.Join(dir, name+suffix), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func differs(want, got string) string {
	if want == got {
		return ""
	}
	w, g := strings.SplitAfter(want, "\n"), strings.SplitAfter(got, "\n")
	under := ""
	line := func(lines []string, i int) string {
		if i < len(lines) {
			return lines[i]
		}
		return "(the end)"
	}
	for i := range max(len(w), len(g)) {
		a, b := line(w, i), line(g, i)
		if a != b {
			return fmt.Sprintf("line %d%s\n  frozen %q\n  now    %q", i+1, under, a, b)
		}
		if strings.HasPrefix(a, "#") {
			under = ", under " + strings.TrimSpace(a)
		}
	}
	return ""
}

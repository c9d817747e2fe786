// Package entry reads and writes inventories: lists of the tests and checks of a checkout.
//
// An inventory is a text with one entry a line, "KIND PACKAGE NAME". Lines that begin with # are comments.
// PACKAGE is a directory, or a script.
package entry

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// The kinds of entries, with examples of their names.
const (
	Main    = "main"     // TestMain
	Test    = "test"     // TestX
	Subtest = "subtest"  // TestX/y
	Fuzz    = "fuzz"     // FuzzX
	Corpus  = "corpus"   // FuzzX/file, FuzzX/seed#0
	Bench   = "bench"    // BenchmarkX
	Sub     = "subbench" // BenchmarkX/y
	Example = "example"  // ExampleX
	Check   = "check"    // a check of a script, or of a Go program of test/
)

var kinds = []string{Main, Test, Subtest, Fuzz, Corpus, Bench, Sub, Example, Check}

// Arrow separates an old entry or package from its heir in the rules and tables of package heirs.
const Arrow = " -> "

// An Entry is one line of an inventory.
type Entry struct{ Kind, Package, Name string }

func (e Entry) String() string { return e.Kind + " " + e.Package + " " + e.Name }

// Compare orders entries by package, kind and name.
func Compare(a, b Entry) int {
	return cmp.Or(cmp.Compare(a.Package, b.Package), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
}

// Parse reads one entry: the text "KIND PACKAGE NAME".
func Parse(line string) (Entry, error) {
	f := strings.SplitN(line, " ", 3)
	if len(f) != 3 || f[1] == "" || f[2] == "" || strings.TrimSpace(f[2]) != f[2] {
		return Entry{}, fmt.Errorf("%q: not KIND PACKAGE NAME", line)
	}
	if !slices.Contains(kinds, f[0]) {
		return Entry{}, fmt.Errorf("%q: kind %q: not one of %s", line, f[0], strings.Join(kinds, ", "))
	}
	return Entry{f[0], f[1], f[2]}, nil
}

// Read reads the inventory in a file. It returns the entries sorted, without duplicates. An entry that contains Arrow
// is an error.
func Read(file string) ([]Entry, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var all []Entry
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for n := 1; lines.Scan(); n++ {
		if line := lines.Text(); line != "" && line[0] != '#' {
			e, err := Parse(line)
			if err != nil {
				return nil, fmt.Errorf("%s:%d: %w", file, n, err)
			}
			if strings.Contains(line, Arrow) {
				return nil, fmt.Errorf("%s:%d: %q contains %q", file, n, line, Arrow)
			}
			all = append(all, e)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return Sort(all), nil
}

// Sort sorts all in place by Compare, and returns it without duplicates.
func Sort(all []Entry) []Entry {
	slices.SortFunc(all, Compare)
	return slices.Compact(all)
}

// Write writes an inventory.
func Write(w io.Writer, all []Entry) error {
	b := bufio.NewWriter(w)
	for _, e := range all {
		fmt.Fprintln(b, e)
	}
	return b.Flush()
}

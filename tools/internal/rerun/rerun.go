// Package rerun decides which failed tests may run again, and keeps a list of the tests that then passed.
//
// A test does not run again if it has a row in docs/flaky.md, if its output shows a failure such as a data race, a
// panic, a leak or wrong bytes, or if Limit tests of the run have passed in a second run before.
package rerun

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// Limit is how many tests of a run may pass in a second run.
const Limit = 2

// Flaky is the path, in a checkout, of a page about tests that once passed only in a second run.
const Flaky = "docs/flaky.md"

// final matches the output of failures after which a test is never run again.
var final = regexp.MustCompile(`(?i)data race|\bpanic\b|fatal error|SIG(SEGV|BUS|ABRT|ILL)|` +
	`\bleak|unexpected goroutines|descriptors before|still open|left behind|` +
	`sha-?256|digest|corrupt|came back changed|mismatch|differ(s|ent) (at|byte)|wrong bytes?|` +
	`failing input written|build failed|setup failed`)

// A List is a list of the tests of a run that passed only the second time.
type List struct {
	file  string // path of the file to which Add writes
	flaky string // text of docs/flaky.md
}

// Open returns the list of the checkout in dir: the file $VNIC_RERUNS, otherwise bin/reruns.txt. The file may be
// missing; the checkout's docs/flaky.md must exist.
func Open(dir string) (*List, error) {
	l := &List{file: os.Getenv("VNIC_RERUNS")}
	if l.file == "" {
		l.file = filepath.Join(dir, "bin", "reruns.txt")
	}
	rows, err := os.ReadFile(filepath.Join(dir, Flaky))
	if err != nil {
		return nil, err
	}
	l.flaky = string(rows)
	return l, nil
}

var passed = regexp.MustCompile(`(?m)^ok\b.*`)

// Refuse returns why a failed test must not run again; "": it may.
func (l *List) Refuse(test, output string) (string, error) {
	if m := final.FindString(passed.ReplaceAllString(output, "")); m != "" {
		return fmt.Sprintf("its output has %q", m), nil
	}
	name := regexp.MustCompile(`(^|[^A-Za-z0-9_-])` + regexp.QuoteMeta(test) + `($|[^A-Za-z0-9_-])`)
	for row := range strings.Lines(l.flaky) {
		if strings.HasPrefix(row, "|") && name.MatchString(row) {
			return "it has a row in " + Flaky, nil
		}
	}
	rows, err := l.Rows()
	if err != nil {
		return "", err
	}
	if len(rows) >= Limit {
		return fmt.Sprintf("%d others of this run were run again before", len(rows)), nil
	}
	return "", nil
}

// Add records a test that passed in its second run, with the first line of output that begins neither with === nor with
// ---. output is output of the first run.
func (l *List) Add(pkg, test, output string) error {
	first := "no output"
	for line := range strings.Lines(output) {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "===") && !strings.HasPrefix(line, "--- ") {
			first = line
			break
		}
	}
	if err := os.MkdirAll(filepath.Dir(l.file), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(l.file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, "%s %s: %s\n", pkg, test, first)
	return errors.Join(err, f.Close())
}

// Rows returns the lines of the list.
func (l *List) Rows() ([]string, error) {
	b, err := os.ReadFile(l.file)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	return strings.FieldsFunc(string(b), func(r rune) bool { return r == '\n' }), err
}

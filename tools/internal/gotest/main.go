// Command gotest is go test with a short report: see the head of tools/gotest.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"vnic.dev/vnic/tools/internal/rerun"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: tools/gotest ARGUMENT..., as go test takes them")
		os.Exit(2)
	}
	failed, err := run(os.Args[1:], os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "gotest:", err)
	}
	if failed || err != nil {
		os.Exit(1)
	}
}

// run runs go test, and runs each failed test again, alone, if package rerun allows it. failed reports whether go test
// failed, unless all its failures are tests that passed the second time; it is true with an error.
func run(args []string, out io.Writer) (failed bool, err error) {
	start := time.Now()
	r := newReport(out)
	if err := r.goTest(args); err != nil {
		return true, err
	}
	r.slowest(time.Since(start))
	if len(r.failed) == 0 {
		return r.exit != 0, nil
	}
	l, err := rerun.Open(".")
	if err != nil {
		return true, err
	}
	for _, f := range r.failed {
		passed, err := again(f, args, l, out)
		if err != nil {
			return true, err
		}
		failed = failed || !passed
	}
	return failed, nil
}

func again(f failure, args []string, l *rerun.List, out io.Writer) (passed bool, err error) {
	if f.test == "" {
		fmt.Fprintf(out, "not run again: %s: no single test failed\n", f.pkg)
		return false, nil
	}
	why, err := l.Refuse(f.test, f.output)
	if err != nil {
		return false, err
	}
	if why != "" {
		fmt.Fprintf(out, "not run again: %s %s: %s\n", f.pkg, f.test, why)
		return false, nil
	}
	fmt.Fprintf(out, "run again: %s %s\n", f.pkg, f.test)
	flags := slices.DeleteFunc(slices.Clone(args), func(a string) bool { return !strings.HasPrefix(a, "-") && isPackage(a) })
	r := newReport(out)
	if err := r.goTest(append(flags, "-count=1", "-run", "^"+f.test+"$", f.pkg)); err != nil || r.exit != 0 {
		return false, err
	}
	return true, l.Add(f.pkg, f.test, f.output)
}

func isPackage(a string) bool { return strings.HasPrefix(a, "./") || strings.HasPrefix(a, "vnic.dev/") }

// event is a line of go test -json (cmd/test2json).
type event struct {
	Action  string
	Package string
	// ImportPath is the package of a build's event, such as "PACKAGE [PACKAGE.test]"; of others it is empty.
	ImportPath string
	Test       string
	Output     string
	Elapsed    float64 // seconds
}

// failure is a failed top-level test, or, with test "", a failed package without a failed test.
type failure struct{ pkg, test, output string }

// report reads the events of one run of go test. It prints the output of the build, of failed tests and of packages,
// and keeps the results.
type report struct {
	out    io.Writer
	exit   int
	failed []failure
	times  []event
	// output has, by package and top-level test ("": the package itself), the output of tests that have not ended,
	// without their subtests that have passed or were skipped.
	output map[string]map[string]printed
}

type printed []event

func (p printed) String() string {
	var b strings.Builder
	for _, e := range p {
		b.WriteString(e.Output)
	}
	return b.String()
}

func newReport(out io.Writer) *report {
	return &report{out: out, output: map[string]map[string]printed{}}
}

func (r *report) goTest(args []string) error {
	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	cmd.Stderr = os.Stderr
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	err = r.read(pipe)
	if _, copyErr := io.Copy(io.Discard, pipe); err == nil {
		err = copyErr
	}
	var exit *exec.ExitError
	switch waitErr := cmd.Wait(); {
	case errors.As(waitErr, &exit):
		r.exit = exit.ExitCode()
	case err == nil:
		err = waitErr
	}
	return err
}

func (r *report) read(from io.Reader) error {
	lines := bufio.NewReader(from)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil {
				fmt.Fprint(r.out, string(line)) // output of go itself
			} else {
				r.take(e)
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

func (r *report) take(e event) {
	top, _, _ := strings.Cut(e.Test, "/")
	switch e.Action {
	case "build-output":
		fmt.Fprint(r.out, e.Output)
	case "output":
		if r.output[e.Package] == nil {
			r.output[e.Package] = map[string]printed{}
		}
		r.output[e.Package][top] = append(r.output[e.Package][top], e)
	case "pass", "fail", "skip":
		r.end(e, top)
	}
}

func (r *report) end(e event, top string) {
	output := r.output[e.Package]
	switch {
	case strings.Contains(e.Test, "/"):
		if e.Action != "fail" {
			output[top] = slices.DeleteFunc(output[top], func(o event) bool {
				return o.Test == e.Test || strings.HasPrefix(o.Test, e.Test+"/")
			})
		}
		return
	case e.Test != "":
		if e.Action == "fail" {
			text := output[top].String()
			r.failed = append(r.failed, failure{e.Package, e.Test, text})
			fmt.Fprint(r.out, text)
		}
		delete(output, top)
		return
	}
	if e.Action != "skip" { // a package is skipped if it has no test files
		e.Elapsed = max(e.Elapsed, 0)
		r.times = append(r.times, e)
	}
	if e.Action == "fail" && !slices.ContainsFunc(r.failed, func(f failure) bool { return f.pkg == e.Package }) {
		var all strings.Builder // no single test failed: for example, one has ended the program
		for _, b := range output {
			all.WriteString(b.String())
		}
		r.failed = append(r.failed, failure{pkg: e.Package, output: all.String()})
		fmt.Fprint(r.out, all.String())
	} else if e.Action != "skip" {
		for line := range strings.Lines(output[""].String()) {
			if line != "PASS\n" {
				fmt.Fprint(r.out, line)
			}
		}
	}
	delete(r.output, e.Package)
}

func (r *report) slowest(all time.Duration) {
	slices.SortStableFunc(r.times, func(a, b event) int { return cmp.Compare(b.Elapsed, a.Elapsed) })
	failed := 0
	for _, e := range r.times {
		if e.Action == "fail" {
			failed++
		}
	}
	fmt.Fprintf(r.out, "%d packages passed, %d failed; slowest of %.0f s:\n", len(r.times)-failed, failed, all.Seconds())
	for _, e := range r.times[:min(5, len(r.times))] {
		fmt.Fprintf(r.out, "%.1f s %s\n", e.Elapsed, e.Package)
	}
}

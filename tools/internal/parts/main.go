// Command parts divides units of tests into parts, and runs a part, a unit or all units: see the head of tools/parts.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"vnic.dev/vnic/tools/internal/rerun"
	"vnic.dev/vnic/tools/internal/tree"
)

const (
	usage = "usage: tools/parts [--speed] list | count | run PART|all|UNIT"
	// table is the path of the file with the seconds that units took, and classes of units.
	table = "tools/parts.txt"
	// limit is the longest time of a part, in seconds.
	limit = 25 * 60
	// unknown is the assumed time, in seconds, of a unit without a row.
	unknown = 3 * 60
)

// patience is how long after a unit's end a process that the unit leaves behind may have its output open; longer is an
// error.
var patience = 10 * time.Second

// A unit is a script, all tests of a package if some are long or boot guests (hasLong), or a package's fuzz targets.
type unit struct {
	name    string // test/1-demo.sh, "go ./internal/nic", "fuzz ./internal/nic"
	seconds int
}

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "parts:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	class := ""
	if len(args) > 0 && args[0] == "--speed" {
		class, args = "speed", args[1:]
	}
	units, err := find(class)
	if err != nil {
		return err
	}
	parts := divide(units)
	switch {
	case len(args) == 1 && args[0] == "list":
		for i, p := range parts {
			fmt.Fprintf(out, "part %d, %d minutes:\n", i+1, (total(p)+59)/60)
			for _, u := range p {
				fmt.Fprintf(out, "  %3d:%02d  %s\n", u.seconds/60, u.seconds%60, u.name)
			}
		}
		return nil
	case len(args) == 1 && args[0] == "count":
		fmt.Fprintln(out, len(parts))
		return nil
	case len(args) == 2 && args[0] == "run" && args[1] == "all":
		return do(units, out)
	case len(args) == 2 && args[0] == "run":
		if i := slices.IndexFunc(units, func(u unit) bool { return u.name == args[1] }); i >= 0 {
			return do(units[i:i+1], out)
		}
		n, err := strconv.Atoi(args[1])
		if err != nil || n < 1 || n > len(parts) {
			return fmt.Errorf("there is no part or unit %q: parts are 1 to %d, and make parts lists the units", args[1],
				len(parts))
		}
		return do(parts[n-1], out)
	}
	return errors.New(usage)
}

// A row of the table is "SECONDS NAME", with "~" before an estimate. A class ("speed" or "hand") at its
// beginning keeps a unit out of the parts of make test-all.
var row = regexp.MustCompile(`^(?:(speed|hand) )?~?(\d+) (.+)$`)

var (
	// hasLong matches text of test files with tests that have a long form or boot guests.
	hasLong = regexp.MustCompile(`\btestkit\.(Long|Boots)\(|\bmachinetest\.`)
	// guests is a package whose tests are no unit: `make test` runs them.
	guests  = "./test/internal/guests"
	hasFuzz = regexp.MustCompile(`(?m)^func Fuzz[A-Z]`)
)

func find(class string) ([]unit, error) {
	text, err := os.ReadFile(table)
	if err != nil {
		return nil, err
	}
	seconds, classes := map[string]int{}, map[string]string{}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		m := row.FindStringSubmatch(line)
		if m == nil {
			return nil, fmt.Errorf("%s: %q is no row", table, line)
		}
		classes[m[3]] = m[1]
		seconds[m[3]], _ = strconv.Atoi(m[2])
	}
	files, err := tree.Files(".")
	if err != nil {
		return nil, err
	}
	var names []string
	for _, f := range files {
		dir := "./" + filepath.Dir(f)
		switch {
		case strings.HasPrefix(f, "tools/"):
		case script.MatchString(f):
			names = append(names, f)
		case strings.HasSuffix(f, "_test.go"):
			src, err := os.ReadFile(f)
			if err != nil {
				return nil, err
			}
			if hasLong.Match(src) && dir != guests {
				names = append(names, "go "+dir)
			}
			if hasFuzz.Match(src) {
				names = append(names, "fuzz "+dir)
			}
		}
	}
	slices.Sort(names)
	var units []unit
	for _, name := range slices.Compact(names) {
		u := unit{name, unknown}
		if s, ok := seconds[name]; ok {
			u.seconds = s
		}
		if classes[name] == class {
			if u.seconds > limit {
				return nil, fmt.Errorf("%s: %s takes %d s, and a part at most %d: divide it, or call it \"hand\"", table, name,
					u.seconds, limit)
			}
			units = append(units, u)
		}
		delete(seconds, name)
	}
	for name := range seconds {
		return nil, fmt.Errorf("%s: there is no %s any more", table, name)
	}
	return units, nil
}

var script = regexp.MustCompile(`^test/\d+-[^/]+\.sh$`)

func divide(units []unit) (parts [][]unit) {
	left := 0
	for _, u := range units {
		if u.seconds > left || len(parts) == 0 {
			parts, left = append(parts, nil), limit
		}
		parts[len(parts)-1] = append(parts[len(parts)-1], u)
		left -= u.seconds
	}
	return parts
}

func total(units []unit) (seconds int) {
	for _, u := range units {
		seconds += u.seconds
	}
	return seconds
}

// do runs units one after the other, and a failed script or failed fuzz targets once more if package rerun allows it.
func do(units []unit, out io.Writer) error {
	l, err := rerun.Open(".")
	if err != nil {
		return err
	}
	var measured strings.Builder
	var failed []string
	for _, u := range units {
		fmt.Fprintf(out, "=== %s\n", u.name)
		start := time.Now()
		text, err := u.run(out)
		if err != nil && !strings.HasPrefix(u.name, "go ") { // in "go" units tools/gotest runs failed tests again
			err = again(u, text, l, out)
		}
		took := time.Since(start).Seconds()
		if err != nil {
			failed = append(failed, u.name)
			fmt.Fprintf(out, "=== %s failed after %.0f s: %v\n", u.name, took, err)
			continue
		}
		fmt.Fprintf(out, "=== %s passed in %.0f s\n", u.name, took)
		fmt.Fprintf(&measured, "%.0f %s\n", took, u.name)
	}
	fmt.Fprintf(out, "seconds, as %s has them:\n%s%d passed, %d failed\n", table, &measured, len(units)-len(failed),
		len(failed))
	if failed != nil {
		return fmt.Errorf("failed: %s", strings.Join(failed, ", "))
	}
	return nil
}

func again(u unit, output string, l *rerun.List, out io.Writer) error {
	why, err := l.Refuse(u.name, output)
	if err != nil {
		return err
	}
	if why != "" {
		return fmt.Errorf("not run again: %s", why)
	}
	fmt.Fprintf(out, "=== run again: %s\n", u.name)
	if _, err := u.run(out); err != nil {
		return err
	}
	return l.Add(u.name, "", lastLines(output))
}

func lastLines(output string) string {
	lines := strings.Split(strings.TrimSpace(output), "\n")
	for _, line := range slices.Backward(lines) {
		if strings.HasPrefix(line, "FAIL") {
			return line
		}
	}
	return lines[len(lines)-1]
}

// run runs a unit, copies its output to out, and returns the last MiB of it.
func (u unit) run(out io.Writer) (string, error) {
	var cmd *exec.Cmd
	kind, what, _ := strings.Cut(u.name, " ")
	switch kind {
	case "go":
		cmd = exec.Command("tools/with-tools", "tools/gotest", "-vet=off", "-ldflags=-s -w", "-count=1", "-timeout=40m", what)
		cmd.Env = append(os.Environ(), "VNIC_LONG=1")
	case "fuzz":
		cmd = exec.Command("tools/with-tools", "tools/fuzz", "20000x", what)
	default:
		cmd = exec.Command(u.name)
	}
	var text tail
	cmd.Stdout = io.MultiWriter(out, &text)
	cmd.Stderr = cmd.Stdout
	cmd.WaitDelay = patience
	err := cmd.Run()
	if errors.Is(err, exec.ErrWaitDelay) {
		err = errors.New("it leaves a process that has its output open")
	}
	return text.String(), err
}

type tail struct{ bytes.Buffer }

func (t *tail) Write(p []byte) (int, error) {
	n, err := t.Buffer.Write(p)
	t.Next(max(0, t.Len()-1<<20))
	return n, err
}

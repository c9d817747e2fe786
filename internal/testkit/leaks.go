package testkit

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

// The runtime opens its poller with the first file that can be polled, and keeps the poller's descriptors open: init
// makes it do so before a test counts descriptors.
func init() {
	if r, w, err := os.Pipe(); err == nil {
		_, _ = r.Close(), w.Close()
	}
}

// FDs returns the open descriptors of the process, each as its number and target, sorted as text.
func FDs() []string {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return []string{err.Error()}
	}
	var fds []string
	for _, e := range entries {
		name, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err != nil {
			continue
		}
		fds = append(fds, e.Name()+" "+name)
	}
	slices.Sort(fds)
	return fds
}

// CheckFDs fails the test if, in a cleanup at its end, the process has more descriptors of some target than now. Their
// numbers may differ.
func CheckFDs(t testing.TB) {
	t.Helper()
	before := FDs()
	t.Cleanup(func() {
		if after := FDs(); more(before, after) {
			t.Errorf("descriptors before:\n%s\nafter:\n%s", strings.Join(before, "\n"), strings.Join(after, "\n"))
		}
	})
}

func more(before, after []string) bool {
	count := make(map[string]int)
	for _, fd := range before {
		_, what, _ := strings.Cut(fd, " ")
		count[what]++
	}
	for _, fd := range after {
		_, what, _ := strings.Cut(fd, " ")
		if count[what]--; count[what] < 0 {
			return true
		}
	}
	return false
}

// LeavesNothing fails the test if it ends with goroutines that do not run now, or with more descriptors (CheckFDs).
func LeavesNothing(t testing.TB) {
	t.Helper()
	CheckFDs(t)
	running := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, running) })
}

// Main runs the tests of a package, and exits: with a status other than 0 if a test fails, or if the tests leave
// goroutines, or more descriptors than before.
func Main(m interface{ Run() int }) {
	before := FDs()
	status := m.Run()
	if err := goleak.Find(); err != nil && status == 0 {
		fmt.Fprintln(os.Stderr, "FAIL:", err)
		status = 1
	}
	if after := FDs(); len(after) > len(before) && status == 0 {
		fmt.Fprintf(os.Stderr, "FAIL: descriptors before the tests:\n%s\nafter:\n%s\n", strings.Join(before, "\n"),
			strings.Join(after, "\n"))
		status = 1
	}
	os.Exit(status)
}

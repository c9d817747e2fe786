// Package testkit tells whether a test leaves descriptors open. (Goroutines are goleak's.)
package testkit

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// FDs lists the descriptors of the process, each with what it is, sorted.
func FDs(t testing.TB) []string {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	var fds []string
	for _, e := range entries {
		name, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err != nil {
			continue // the directory itself
		}
		fds = append(fds, e.Name()+" "+name)
	}
	slices.Sort(fds)
	return fds
}

// CheckFDs fails the test if it ends with other descriptors than it has now.
func CheckFDs(t testing.TB) {
	t.Helper()
	before := FDs(t)
	t.Cleanup(func() {
		if after := FDs(t); !slices.Equal(before, after) {
			t.Errorf("descriptors before:\n%s\nafter:\n%s", strings.Join(before, "\n"), strings.Join(after, "\n"))
		}
	})
}

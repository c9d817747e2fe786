package testkit

import (
	"os"
	"runtime/debug"
	"slices"
	"testing"
)

// Long reports whether tests should also run in their large form: sizes and repetitions that take
// minutes. The environment variable VNIC_LONG requests it, as in `make test-all`.
func Long() bool { return os.Getenv("VNIC_LONG") != "" }

// Boots skips a test that boots its own guests, unless the large form is requested without -short:
// `make test` boots guests in one place, test/internal/guests.
func Boots(t testing.TB) {
	t.Helper()
	if testing.Short() || !Long() {
		t.Skip("boots guests: in the large form only (VNIC_LONG)")
	}
}

// Slow skips a test that takes a second or more if the tests run with -short, as in `make check`, but
// without the race detector. The test runs in `make test`, and with the race detector in `make race`.
func Slow(t testing.TB) {
	t.Helper()
	if testing.Short() && !underRace() {
		t.Skip("takes seconds: not with -short, but with -race")
	}
}

// underRace reports whether this program was built with -race.
func underRace() bool {
	info, _ := debug.ReadBuildInfo()
	return info != nil && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

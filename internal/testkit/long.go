package testkit

import (
	"os"
	"runtime/debug"
	"slices"
	"testing"
)

// Long reports whether the environment variable VNIC_LONG is not empty: some tests then run in a larger form, or run
// at all.
func Long() bool { return os.Getenv("VNIC_LONG") != "" }

// Boots skips the calling test, which boots its own guests, unless VNIC_LONG is set and the tests run without -short.
func Boots(t testing.TB) {
	t.Helper()
	if testing.Short() || !Long() {
		t.Skip("boots guests: in the large form only (VNIC_LONG)")
	}
}

// Slow skips the calling test, which takes a second or more, if the tests run with -short and without the race
// detector.
func Slow(t testing.TB) {
	t.Helper()
	if testing.Short() && !underRace() {
		t.Skip("takes seconds: not with -short, but with -race")
	}
}

func underRace() bool {
	info, _ := debug.ReadBuildInfo()
	return info != nil && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

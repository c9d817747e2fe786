package testkit

import (
	"os"
	"runtime/debug"
	"slices"
	"testing"
)

// Long reports whether tests should also run in their large form (VNIC_LONG), which takes minutes.
func Long() bool { return os.Getenv("VNIC_LONG") != "" }

// Boots skips a test that boots its own guests, unless the large form is requested without -short.
func Boots(t testing.TB) {
	t.Helper()
	if testing.Short() || !Long() {
		t.Skip("boots guests: in the large form only (VNIC_LONG)")
	}
}

// Slow skips a test that takes a second or more if the tests run with -short, but without the race detector.
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

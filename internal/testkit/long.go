package testkit

import (
	"os"
	"testing"
)

// Long says whether tests are to run in their large form too: sizes and repetitions that take
// minutes. The environment variable VNIC_LONG asks for it, as `make test-all` does.
func Long() bool { return os.Getenv("VNIC_LONG") != "" }

// Boots skips a test that boots guests of its own, unless its large form is asked for: `make test` boots guests in one
// place, test/internal/guests.
func Boots(t testing.TB) {
	t.Helper()
	if testing.Short() || !Long() {
		t.Skip("boots guests: in the large form only (VNIC_LONG)")
	}
}

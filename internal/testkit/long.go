package testkit

import (
	"os"
	"testing"
)

// Long reports whether tests should also run in their large form: sizes and repetitions that take
// minutes. The environment variable VNIC_LONG requests it, as in `make test-all`.
func Long() bool { return os.Getenv("VNIC_LONG") != "" }

// Boots skips a test that boots its own guests, unless the large form is requested: `make test`
// boots guests in one place, test/internal/guests.
func Boots(t testing.TB) {
	t.Helper()
	if testing.Short() || !Long() {
		t.Skip("boots guests: in the large form only (VNIC_LONG)")
	}
}

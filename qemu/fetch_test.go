package qemu

import (
	"testing"
)

// fetched gives QEMU and a kernel from the user's cache, fetching them when they are not there.
func fetched(t *testing.T) *Resolved {
	t.Helper()
	if testing.Short() {
		t.Skip("needs QEMU and a kernel, and the network the first time")
	}
	r, err := Fetch(t.Context(), Options{IgnoreSystemQEMU: true, Progress: func(p Progress) { t.Logf("%+v", p) }})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestFetchFindsAll(t *testing.T) {
	r := fetched(t)
	t.Logf("%+v", r)
}

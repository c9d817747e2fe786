package qemu

import (
	"os"
	"path/filepath"
	"testing"

	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/testkit"
)

// fetched returns the QEMU and the kernel that the environment names, or else from the user's cache, into which it
// downloads what is missing. It skips the test unless it may boot guests (testkit.Boots).
func fetched(t *testing.T) *assets.Resolved {
	t.Helper()
	testkit.Boots(t)
	r := testkit.Must(assets.Fetch(t.Context(), assets.Options{IgnoreSystemQEMU: true}))(t)
	t.Cleanup(func() {
		testkit.NoError(t, r.Close())
	})
	return r
}

// fakeQEMU puts a program that prints a QEMU version first into PATH, and empties the variables for QEMU, the kernel,
// its modules and the cache, until the test ends.
func fakeQEMU(t *testing.T, version string) {
	dir := t.TempDir()
	path := filepath.Join(dir, "qemu-system-x86_64")
	testkit.OK(t, os.WriteFile(path, []byte("#!/bin/sh\necho QEMU emulator version "+version+"\n"), 0o755))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	for _, e := range []string{assets.EnvQEMU, assets.EnvKernel, assets.EnvModules, assets.EnvCache} {
		t.Setenv(e, "")
	}
}

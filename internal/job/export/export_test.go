package export

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	guestimages "vnic.dev/vnic/guest-images"
	_ "vnic.dev/vnic/internal/guestbin" // an export needs the embedded guest program
	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func TestNamesOfCommandsAreChecked(t *testing.T) {
	for _, list := range [][]string{{"run", "stat"}, {"Run"}, {""}, nil} {
		o := Options{For: list}
		err := o.Check()
		testkit.ErrorIs(t, err, ErrCommand)
		testkit.ErrorSays(t, err, "allreduce, block, boot") // the valid names
	}
	o := Options{For: []string{"run", "boot", "run"}}
	testkit.OK(t, o.Check())
	if !slices.Equal(o.For, []string{"boot", "run"}) {
		t.Error(o.For)
	}
}

// An export that cannot fetch leaves an older file of the same name unchanged.
func TestFailedExportLeavesTheFile(t *testing.T) {
	if !guestimages.CarriesProgram() {
		t.Skip("built without make: no guest program")
	}
	file := filepath.Join(t.TempDir(), "vnic.tar")
	testkit.OK(t, os.WriteFile(file, []byte("older"), 0o600))
	_, err := Run(t.Context(), Options{File: file, For: []string{"run"},
		Fetch: assets.Options{CacheDir: t.TempDir(), Offline: true}})
	testkit.ErrorIs(t, err, assets.ErrOffline)
	b, err := os.ReadFile(file)
	if err != nil || string(b) != "older" {
		t.Errorf("%q, %v", b, err)
	}
}

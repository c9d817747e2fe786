package machine

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	guestimages "vnic.dev/vnic/guest-images"
	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/testkit"
)

// Invariant: offline: the error for a module missing in an imported kernel's archive names it and
// says what to do.
func TestModuleThatWasNotImportedIsNamed(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "program")
	testkit.OK(t, os.WriteFile(program, []byte("\x7fELF"), 0o755))
	im := &Images{from: assets.Options{Offline: true}, Resolved: &assets.Resolved{Cache: dir,
		Kernel: assets.Kernel{Version: "6.1", Modules: t.TempDir(), Partial: "run"}}}
	build := func() error {
		return im.BuildImage(t.Context(), guestimages.Options{Modules: []string{"nvmet"}, Program: program})
	}
	err := build()
	var missing *assets.Missing
	if !errors.Is(err, assets.ErrPartial) || !errors.As(err, &missing) || LacksModules(err) {
		t.Errorf("%v", err)
	}
	testkit.ErrorSays(t, err, "module nvmet", "--for")
	im.Kernel.Partial = ""
	if err := build(); !LacksModules(err) {
		t.Errorf("of a whole kernel: %v", err)
	}
}

package selftests

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"vnic.dev/vnic/internal/proc"
)

//go:embed patches
var patchFiles embed.FS

// patchSeries is patches in the order in which they are applied.
type patchSeries []Patch

// Patch is a change of the kernel's tests, as it would be sent to its maintainers.
type Patch struct {
	Name string // of the file
	Text []byte
}

// patches are the adaptations of the tests, in the repository in the form in which they can be sent.
var patches = func() (list patchSeries) {
	names, _ := fs.Glob(patchFiles, "patches/*.patch") // sorted
	for _, n := range names {
		b, _ := patchFiles.ReadFile(n) // embedded: it is there
		list = append(list, Patch{Name: filepath.Base(n), Text: b})
	}
	return list
}()

// Patches gives the series.
func Patches() []Patch { return patches }

// id tells a series from others.
func (s patchSeries) id() string {
	h := sha256.New()
	for _, p := range s {
		_, _ = fmt.Fprintf(h, "%s %d\n%s", p.Name, len(p.Text), p.Text)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// apply applies the patches to a tree.
func (s patchSeries) apply(ctx context.Context, tools, dir string) error {
	for _, p := range s {
		path := filepath.Join(dir, p.Name)
		if err := os.WriteFile(path, p.Text, 0o644); err != nil {
			return err
		}
		if _, err := (proc.Command{Dir: dir}).Run(ctx, filepath.Join(tools, "usr/bin/patch"), "-p1", "--forward", "--batch",
			"-i", path); err != nil {
			return fmt.Errorf("%s does not apply to this kernel's tests: %w", p.Name, err)
		}
	}
	return nil
}

// imports are modules that lie among the programs, and what they call, with the programs that do so. The library that
// all programs import, lib/py, is not one of them: what it has new is of no effect before a program calls it.
var imports = map[string][]string{
	"drivers/net/hw/devmem_lib.py": {"drivers/net/hw/devmem.py", "drivers/net/hw/nk_devmem.py",
		"drivers/net/hw/userns_devmem.py"},
	"net/lib/gro.c": {"drivers/net/gro.py", "drivers/net/hw/gro_hw.py"},
}

// Touches says whether the series changes a program, named from tools/testing/selftests on, or a module among the
// programs that it imports.
func Touches(name string) bool {
	if patches.change(name) {
		return true
	}
	for module, programs := range imports {
		if slices.Contains(programs, name) && patches.change(module) {
			return true
		}
	}
	return false
}

// change says whether the series changes or makes a file, named from tools/testing/selftests on.
func (s patchSeries) change(name string) bool {
	return slices.ContainsFunc(s, func(p Patch) bool {
		return bytes.Contains(p.Text, []byte("\n+++ b/"+selftestsDir+"/"+name+"\n"))
	})
}

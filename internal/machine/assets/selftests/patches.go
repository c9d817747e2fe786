package selftests

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
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
	// Rebased is the same change of the tests of other kernels, to which Text does not apply, the newest first.
	Rebased [][]byte
}

// patches are the adaptations of the tests, in the repository in the form in which they can be sent.
var patches = func() (list patchSeries) {
	names, _ := fs.Glob(patchFiles, "patches/*.patch") // sorted
	for _, n := range names {
		b, _ := patchFiles.ReadFile(n) // embedded: it is there
		p := Patch{Name: filepath.Base(n), Text: b}
		others, _ := fs.Glob(patchFiles, "patches/*/"+p.Name) // of series of kernels
		for _, o := range slices.Backward(others) {
			b, _ := patchFiles.ReadFile(o)
			p.Rebased = append(p.Rebased, b)
		}
		list = append(list, p)
	}
	return list
}()

// Patches gives the series.
func Patches() []Patch { return patches }

// id tells a series from others.
func (s patchSeries) id() string {
	h := sha256.New()
	for _, p := range s {
		for _, text := range p.texts() {
			_, _ = fmt.Fprintf(h, "%s %d\n%s", p.Name, len(text), text)
		}
	}
	return hex.EncodeToString(h.Sum(nil))
}

// texts are the forms of a patch, in the order in which they are tried.
func (p *Patch) texts() [][]byte { return append([][]byte{p.Text}, p.Rebased...) }

// apply applies the patches to a tree: of each the first form that applies. It gives the names of those that do not
// apply to this kernel's tests, and of those that need one of these.
func (s patchSeries) apply(ctx context.Context, tools, dir string) (left []string, err error) {
	for i, p := range s {
		lacks := slices.ContainsFunc(s[:i], func(q Patch) bool { return slices.Contains(left, q.Name) && p.needs(&q) })
		applied := false
		if !lacks {
			if applied, err = p.apply(ctx, tools, dir); err != nil {
				return nil, fmt.Errorf("%s: %w", p.Name, err)
			}
		}
		if !applied {
			left = append(left, p.Name)
		}
	}
	return left, nil
}

// helper is a line by which a patch adds something to the library that all programs import.
var helper = regexp.MustCompile(`(?m)^\+ *from \.\w+ import (\w+)$`)

// needs says whether a patch uses what another adds to the library.
func (p *Patch) needs(other *Patch) bool {
	return slices.ContainsFunc(helper.FindAllSubmatch(other.Text, -1),
		func(m [][]byte) bool { return bytes.Contains(p.Text, m[1]) })
}

// apply says whether a patch applied. One that does not has changed nothing.
func (p *Patch) apply(ctx context.Context, tools, dir string) (bool, error) {
	path := filepath.Join(dir, p.Name)
	patch := func(args ...string) error {
		_, err := proc.Command{Dir: dir}.Run(ctx, filepath.Join(tools, "usr/bin/patch"),
			append(args, "-p1", "--forward", "--batch", "-i", path)...)
		return err
	}
	for _, text := range p.texts() {
		if err := os.WriteFile(path, text, 0o644); err != nil {
			return false, err
		}
		err := patch("--dry-run")
		if err == nil {
			return true, patch()
		}
		// Status 1: some hunks cannot be applied; 2: worse (patch(1)).
		if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 1 {
			return false, err
		}
	}
	return false, nil
}

// imports are modules that lie among the programs, and what they call, with the programs that do so. The library that
// all programs import, lib/py, is not one of them: what it has new is of no effect before a program calls it.
var imports = map[string][]string{
	"drivers/net/hw/devmem_lib.py": {"drivers/net/hw/devmem.py", "drivers/net/hw/nk_devmem.py",
		"drivers/net/hw/userns_devmem.py"},
	"net/lib/csum.c": {"drivers/net/hw/csum.py"},
	"net/lib/gro.c":  {"drivers/net/gro.py", "drivers/net/hw/gro_hw.py"},
}

// Changing gives the names of the patches that change a program, named from tools/testing/selftests on, or a module
// among the programs that it imports.
func Changing(name string) (names []string) {
	files := []string{name}
	for module, programs := range imports {
		if slices.Contains(programs, name) {
			files = append(files, module)
		}
	}
	for i := range patches {
		if slices.ContainsFunc(files, patches[i].changes) {
			names = append(names, patches[i].Name)
		}
	}
	return names
}

// changes says whether a patch changes or makes a file, named from tools/testing/selftests on.
func (p *Patch) changes(name string) bool {
	return bytes.Contains(p.Text, []byte("\n+++ b/"+selftestsDir+"/"+name+"\n"))
}

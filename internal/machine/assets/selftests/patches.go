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

// patchSeries are patches in order.
type patchSeries []Patch

// Patch is a change of the kernel's tests.
type Patch struct {
	Name string // of the file
	Text []byte
	// Rebased are versions of the change for other kernel series (patches/SERIES/), the last folder's first.
	Rebased [][]byte
}

// patches are the embedded patches of the directory patches, in order of their names.
var patches = func() (list patchSeries) {
	names, _ := fs.Glob(patchFiles, "patches/*.patch") // sorted
	for _, n := range names {
		b, _ := patchFiles.ReadFile(n) // embedded
		p := Patch{Name: filepath.Base(n), Text: b}
		copies, _ := fs.Glob(patchFiles, "patches/*/"+p.Name) // per kernel series
		for _, o := range slices.Backward(copies) {
			b, _ := patchFiles.ReadFile(o)
			p.Rebased = append(p.Rebased, b)
		}
		list = append(list, p)
	}
	return list
}()

func (s patchSeries) id() string {
	h := sha256.New()
	for _, p := range s {
		for _, text := range p.texts() {
			_, _ = fmt.Fprintf(h, "%s %d\n%s", p.Name, len(text), text)
		}
	}
	return hex.EncodeToString(h.Sum(nil))
}

// texts returns a patch's versions, in the order of tries.
func (p *Patch) texts() [][]byte { return append([][]byte{p.Text}, p.Rebased...) }

// apply applies, of each patch, the first version that applies, but leaves out a patch that needs another one left out.
// It returns the names of the patches left out.
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

// helper matches a line by which a patch imports a helper into the tests' library.
var helper = regexp.MustCompile(`(?m)^\+ *from \.\w+ import (\w+)$`)

// needs reports whether p.Text contains the name of a helper that other.Text adds.
func (p *Patch) needs(other *Patch) bool {
	return slices.ContainsFunc(helper.FindAllSubmatch(other.Text, -1),
		func(m [][]byte) bool { return bytes.Contains(p.Text, m[1]) })
}

// apply applies the first version of a patch that applies. If none does, it returns false, and changes no test.
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
		// Status 1: some hunks do not apply; 2: a worse error (patch(1)).
		if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 1 {
			return false, err
		}
	}
	return false, nil
}

// imports maps modules, and sources of helper programs, to the test programs that use them. The library that all test
// programs import is not in it.
var imports = map[string][]string{
	"drivers/net/hw/devmem_lib.py": {"drivers/net/hw/devmem.py", "drivers/net/hw/nk_devmem.py",
		"drivers/net/hw/userns_devmem.py"},
	"net/lib/csum.c": {"drivers/net/hw/csum.py"},
	"net/lib/gro.c":  {"drivers/net/gro.py", "drivers/net/hw/gro_hw.py"},
}

// Changing returns the names of the patches that change the file at the path name, relative to
// tools/testing/selftests, or a file that the program at name uses (imports).
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

// changes reports whether p.Text changes the file at the path name, relative to tools/testing/selftests.
func (p *Patch) changes(name string) bool {
	return bytes.Contains(p.Text, []byte("\n+++ b/"+selftestsDir+"/"+name+"\n"))
}

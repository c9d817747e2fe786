package assets

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"vnic.dev/vnic/internal/proc"
)

// MergeUsr links /bin, /sbin, /lib and /lib64 of a tree of packages into its /usr, as on Debian, if they do not exist.
// It fails if one of the four is a directory.
func MergeUsr(root string) error {
	for _, dir := range []string{"bin", "sbin", "lib", "lib64"} {
		if err := os.MkdirAll(filepath.Join(root, "usr", dir), 0o755); err != nil {
			return err
		}
		st, err := os.Lstat(filepath.Join(root, dir))
		switch {
		case errors.Is(err, os.ErrNotExist):
			err = os.Symlink("usr/"+dir, filepath.Join(root, dir))
		case err == nil && st.IsDir():
			err = fmt.Errorf("packages with files in /%s: their suite has no merged /usr: name a newer one's mirror", dir)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// CompilePython compiles the modules of the Python in a tree of packages, but for tests, idlelib and ensurepip. Without
// that, Python would compile a program's imports each time that the program runs from a read-only image.
func CompilePython(ctx context.Context, root string) error {
	python := filepath.Join(root, "usr/bin/python3")
	args := []string{"--library-path", filepath.Join(root, Libraries), python, "-m", "compileall", "-q",
		"--invalidation-mode", "unchecked-hash", "-s", root, "-x", `/(test|idlelib|ensurepip)/`}
	dirs, err := filepath.Glob(filepath.Join(root, "usr/lib/python3*"))
	if err != nil {
		return err
	}
	c := proc.Command{Dir: root, Env: []string{"PYTHONHOME=" + filepath.Join(root, "usr")}}
	if _, err := c.Run(ctx, filepath.Join(root, Loader), append(args, dirs...)...); err != nil {
		return fmt.Errorf("compile Python's modules: %w", err)
	}
	return nil
}

// RunByOwnLoader makes the dynamic programs below dirs, which are patterns relative to root, a tree of packages, run
// with the tree's loader and libraries. A script replaces each program, because compilers call programs by path.
// RunByOwnLoader also calls MergeUsr.
func RunByOwnLoader(root string, dirs ...string) error {
	var programs []string
	for _, pattern := range dirs {
		list, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return err
		}
		for _, dir := range list {
			err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
				if err != nil || !e.Type().IsRegular() {
					return err
				}
				st, err := e.Info()
				// Some libraries are executable and have an interpreter.
				if err == nil && st.Mode()&0o111 != 0 && dynamic(path) && !strings.Contains(filepath.Base(path), ".so") {
					programs = append(programs, path)
				}
				return err
			})
			if err != nil {
				return err
			}
		}
	}
	if len(programs) == 0 {
		return fmt.Errorf("%s: no programs among the tools", root)
	}
	if err := MergeUsr(root); err != nil {
		return err
	}
	for _, p := range programs {
		if err := os.Rename(p, p+".real"); err != nil {
			return err
		}
		if err := os.WriteFile(p, []byte(ownLoader), 0o755); err != nil {
			return err
		}
	}
	return nil
}

// ownLoader is the script in place of a program X. It starts X.real beside it, wherever the tree is, also by a link.
const ownLoader = `#!/bin/sh
self=$(readlink -f "$0")
libs=${self%/usr/*}/` + Libraries + `
exec "$libs/ld-linux-x86-64.so.2" --library-path "$libs" --argv0 "$0" "$self.real" "$@"
`

// dynamic reports whether a file is an ELF program with an interpreter.
func dynamic(path string) bool {
	f, err := elf.Open(path)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	return slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
}

// ShellQuote quotes s as one word for a shell.
func ShellQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// Contents returns the paths of a directory's entries.
func Contents(dir string) (list []string, err error) {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		list = append(list, filepath.Join(dir, e.Name()))
	}
	return list, err
}

// Squash makes a squashfs image of files, with fixed times and owners, so that the same files give the same image.
// program is mksquashfs with its first arguments; level is zstd's.
func Squash(ctx context.Context, program, files []string, image string, level int, options ...string) error {
	args := slices.Concat(program[1:], files, []string{image, "-all-root", "-comp", "zstd", "-Xcompression-level",
		strconv.Itoa(level), "-noappend", "-no-progress", "-quiet", "-no-xattrs", "-all-time", "0", "-mkfs-time", "0"},
		options)
	// mksquashfs refuses this variable beside its options for times.
	c := proc.Command{Dir: filepath.Dir(image), Unset: []string{"SOURCE_DATE_EPOCH"}}
	_, err := c.Run(ctx, program[0], args...)
	return err
}

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

// MergeUsr links /bin, /sbin, /lib and /lib64 to the directories of the same names in /usr of a tree of packages, as
// on Debian: the packages do not contain these links, a maintainer script makes them. It returns an error if one of
// the four is a directory.
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

// CompilePython compiles the modules of the Python in a tree of packages with that Python, as
// maintainer scripts do. Otherwise each program compiles its imports, which on an emulated
// processor takes longer than most programs run.
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

// RunByOwnLoader makes the programs below directories of a tree of packages (patterns are allowed)
// run with the tree's loader and libraries, whatever libc this machine has. It moves each program
// to a new name beside a script that starts it. The script has the program's old path, because
// compilers call other programs by path. RunByOwnLoader calls MergeUsr, too.
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
				// Some libraries can also be run as programs.
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

// ownLoader is the script that starts the program beside it. The tree may be anywhere, and may be moved; links
// may lead to the script.
const ownLoader = `#!/bin/sh
self=$(readlink -f "$0")
libs=${self%/usr/*}/` + Libraries + `
exec "$libs/ld-linux-x86-64.so.2" --library-path "$libs" --argv0 "$0" "$self.real" "$@"
`

// dynamic reports whether a file is an ELF program with an interpreter, such as glibc's loader.
func dynamic(path string) bool {
	f, err := elf.Open(path)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	return slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
}

// ShellQuote returns a word that a shell reads as s.
func ShellQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// Contents returns the paths of a directory's entries, as sources for Squash.
func Contents(dir string) (list []string, err error) {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		list = append(list, filepath.Join(dir, e.Name()))
	}
	return list, err
}

// Squash makes a squashfs image of files. The same files give the same bytes. program is mksquashfs,
// with leading arguments; level is zstd's compression level.
func Squash(ctx context.Context, program, files []string, image string, level int, options ...string) error {
	args := slices.Concat(program[1:], files, []string{image, "-all-root", "-comp", "zstd", "-Xcompression-level",
		strconv.Itoa(level), "-noappend", "-no-progress", "-quiet", "-no-xattrs", "-all-time", "0", "-mkfs-time", "0"},
		options)
	// mksquashfs refuses to get the time from both an option and this variable, which make sets.
	c := proc.Command{Dir: filepath.Dir(image), Unset: []string{"SOURCE_DATE_EPOCH"}}
	_, err := c.Run(ctx, program[0], args...)
	return err
}

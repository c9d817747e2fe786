package image

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/outfile"
)

// ErrExists means that a file or directory exists.
var ErrExists = errors.New("is there already: give another name, or --force to replace it")

type content struct {
	mode  fs.FileMode
	write func(io.Writer) error
}

func writeFile(path string, force bool, c content) error {
	if err := replaceable(path, force, fs.FileMode.IsRegular, "not a file"); err != nil {
		return err
	}
	const name = "file"
	return complete(path, map[string]content{name: c}, func(dir string) error {
		from := filepath.Join(dir, name)
		if force {
			return outfile.Explain(path, os.Rename(from, path))
		}
		return rename(from, path, unix.RENAME_NOREPLACE)
	})
}

// fill writes the content to f, sets its mode and closes it. An error that names f, a temporary file, names path
// instead.
func (c content) fill(f *os.File, path string) error {
	err := c.write(f)
	if err == nil {
		err = f.Chmod(c.mode)
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	var failed *fs.PathError
	if errors.As(err, &failed) && failed.Path == f.Name() {
		return outfile.Explain(path, err)
	}
	return err
}

// writeDir makes a directory of files, atomically if the file system can (rename). With force it replaces a
// directory that has only files of these names.
func writeDir(path string, force bool, files map[string]content) error {
	path = filepath.Clean(path)
	if err := replaceable(path, force, fs.FileMode.IsDir, "not a directory"); err != nil {
		return err
	}
	if err := onlyThese(path, files); err != nil {
		return err
	}
	return complete(path, files, func(dir string) error {
		if _, err := os.Lstat(path); force && err == nil {
			return rename(dir, path, unix.RENAME_EXCHANGE) // after an exchange dir is the older directory
		}
		return rename(dir, path, unix.RENAME_NOREPLACE)
	})
}

// complete writes files into a temporary directory beside path, calls place to rename it or a file in it to
// path, and removes the rest.
func complete(path string, files map[string]content, place func(dir string) error) (err error) {
	sweep(path)
	dir, err := os.MkdirTemp(filepath.Dir(path), unfinished(path)+"*")
	if err != nil {
		return outfile.Explain(path, err)
	}
	if d, err := os.Open(dir); err == nil {
		_ = claim(d)
		defer func() { _ = d.Close() }()
	}
	defer func() {
		if rerr := os.RemoveAll(dir); err == nil && rerr != nil {
			err = rerr
		}
	}()
	if err := os.Chmod(dir, 0o755); err != nil {
		return outfile.Explain(path, err)
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			return outfile.Explain(path, err)
		}
		if err := files[name].fill(f, path); err != nil {
			return err
		}
	}
	return place(dir)
}

func unfinished(path string) string { return "." + filepath.Base(path) + ".new-" }

// claim locks f, a temporary directory or file, until f is closed; it fails if another process has locked it.
func claim(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) }

// sweep removes the temporary directories and files for path that killed processes have left.
func sweep(path string) {
	dir := filepath.Dir(path)
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), unfinished(path)) || !e.IsDir() && !e.Type().IsRegular() {
			continue
		}
		name := filepath.Join(dir, e.Name())
		f, err := os.Open(name)
		if err != nil {
			continue
		}
		if claim(f) == nil {
			_ = os.RemoveAll(name)
		}
		_ = f.Close()
	}
}

func replaceable(path string, force bool, kind func(fs.FileMode) bool, not string) error {
	st, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return outfile.Explain(path, err)
	case !kind(st.Mode()):
		return fmt.Errorf("%s: there is something of this name, and it is %s: give another name", path, not)
	case !force:
		return fmt.Errorf("%s: %w", path, ErrExists)
	}
	return nil
}

// onlyThese returns an error if a directory has anything but files of these names.
func onlyThese(dir string, files map[string]content) error {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return outfile.Explain(dir, err)
	}
	for _, e := range entries {
		if _, known := files[e.Name()]; !known || !e.Type().IsRegular() {
			return fmt.Errorf("%s: %s in it is not of a guest image: give another name, or remove it", dir, e.Name())
		}
	}
	return nil
}

// rename renames without replacing, or exchanges (rename(2)), as flags asks. On file systems that cannot, it is not
// atomic: an exchange removes the target first, and in either case another process can make the target before the
// rename.
func rename(from, to string, flags uint) error {
	err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, flags)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) {
		if flags == unix.RENAME_EXCHANGE {
			err = os.RemoveAll(to)
		} else if _, serr := os.Lstat(to); serr == nil {
			err = unix.EEXIST
		} else {
			err = nil
		}
		if err == nil {
			err = os.Rename(from, to)
		}
	}
	if errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("%s: %w", to, ErrExists)
	}
	return outfile.Explain(to, err)
}

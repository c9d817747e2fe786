package outfile

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Draft is a file that gets its name when it is complete.
type Draft struct {
	Temp string // in the same directory as Name; "": the draft has no name yet, and ends with the process
	Name string // NewDraft makes it absolute; of a link, it is the target

	// Rename gives the draft its name, and Remove removes Temp. A process that may not do that can replace these
	// functions.
	Rename, Remove func() error

	f *os.File
}

// NewDraft makes a draft, in the directory of the file: without a name if the file system supports that
// (open(2), O_TMPFILE). Errors name the file and advise what to do.
func NewDraft(name string) (_ *Draft, err error) {
	defer func() { err = Explain(name, err) }()
	to, err := filepath.Abs(name)
	if err != nil {
		return nil, err
	}
	st, err := os.Lstat(to)
	if err == nil && st.Mode()&fs.ModeSymlink != 0 {
		if !ours(st) {
			return nil, ErrLink
		}
		if to, err = filepath.EvalSymlinks(to); err != nil {
			return nil, err
		}
		st, err = os.Lstat(to)
	}
	switch {
	case err == nil && !st.Mode().IsRegular():
		return nil, errors.New("not a regular file")
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	d := &Draft{Name: to}
	return d, d.open()
}

// Replace writes a file, with the content from write, and makes it readable for all. It replaces an existing
// file only when it is complete.
func Replace(name string, write func(*os.File) error) error {
	d := &Draft{Name: name}
	err := d.open()
	if err != nil {
		return err
	}
	if err = write(d.f); err == nil {
		err = d.f.Chmod(0o644)
	}
	return d.finish(err)
}

func (d *Draft) open() (err error) {
	if d.f, err = os.OpenFile(filepath.Dir(d.Name), os.O_RDWR|unix.O_TMPFILE, mode); err != nil {
		return d.withName()
	}
	d.Rename = func() error { return Adopt(d.f, unix.AT_FDCWD, d.Name) }
	return nil
}

// withName makes the draft as a file with a temporary name.
func (d *Draft) withName() (err error) {
	if d.f, err = os.CreateTemp(filepath.Dir(d.Name), "."+filepath.Base(d.Name)+".*"); err != nil { // mode 0600
		return err
	}
	d.Temp = d.f.Name()
	d.Rename = func() error { return os.Rename(d.Temp, d.Name) }
	d.Remove = func() error { return os.Remove(d.Temp) }
	return nil
}

// Commit writes b to the draft and gives the draft its name.
func (d *Draft) Commit(b []byte) error {
	_, err := d.f.Write(b)
	if err = d.finish(err); err != nil {
		return Explain(d.Name, err)
	}
	return nil
}

// finish gives the draft its name if err is nil; otherwise it removes the draft.
func (d *Draft) finish(err error) error {
	if err == nil && d.Temp == "" {
		err = d.Rename()
	}
	err = errors.Join(err, d.f.Close())
	d.f = nil
	if d.Temp == "" {
		return err
	}
	if err == nil {
		err = d.Rename()
	}
	if err != nil {
		if rerr := d.Remove(); !errors.Is(rerr, fs.ErrNotExist) {
			err = errors.Join(err, rerr)
		}
	}
	return err
}

// File returns the draft's file, which the draft still owns.
func (d *Draft) File() *os.File { return d.f }

// Adopt gives a file without a name the given name in a directory, as for openat(2), and replaces an existing
// file: a link cannot do that, so the file first gets a temporary name.
func Adopt(f *os.File, dir int, name string) error {
	dirName, base := filepath.Split(name)
	for range 100 {
		temp := fmt.Sprintf("%s.%s.%08x", dirName, base, rand.Uint32())
		err := unix.Linkat(unix.AT_FDCWD, fmt.Sprint("/proc/self/fd/", f.Fd()), dir, temp, unix.AT_SYMLINK_FOLLOW)
		if errors.Is(err, unix.EEXIST) {
			continue
		}
		if err == nil {
			if err = unix.Renameat(dir, temp, dir, name); err != nil {
				_ = unix.Unlinkat(dir, temp, 0)
			}
		}
		return err
	}
	return unix.EEXIST
}

// Discard removes the draft, unless Commit was called.
func (d *Draft) Discard() error {
	if d == nil || d.f == nil {
		return nil
	}
	err := d.f.Close()
	if d.Temp != "" {
		err = errors.Join(err, d.Remove())
	}
	d.f = nil
	if err != nil {
		return fmt.Errorf("%s: %w", d.Temp, err)
	}
	return nil
}

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
	Temp string // temporary path in the directory of Name; "": there is none, and a file closed without Rename is gone
	Name string // NewDraft makes it absolute; if a symbolic link has the name, it is the link's target

	// Rename gives the draft its name, and Remove removes Temp; if Temp is "", Remove is nil. For a process that may not
	// rename or remove the file, other functions can replace these.
	Rename, Remove func() error

	f *os.File
}

// NewDraft makes a draft for a regular file that exists or not, in the directory of the file: without a name if the
// file system supports that (open(2), O_TMPFILE). Errors name the file and advise what to do.
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

// Replace makes a file of mode 0644 with the content that the function write writes. The new file replaces an existing
// one only when the new one is complete.
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

// Commit writes b to the draft, gives the draft its name, and closes it. After an error it removes the draft, as far as
// possible.
func (d *Draft) Commit(b []byte) error {
	_, err := d.f.Write(b)
	if err = d.finish(err); err != nil {
		return Explain(d.Name, err)
	}
	return nil
}

// finish closes the draft's file, and gives the draft its name if err is nil. It removes a draft that got no name.
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

// File returns the draft's file, which the draft still owns; nil after Commit or Discard.
func (d *Draft) File() *os.File { return d.f }

// Adopt gives a file without a name the name, relative to the directory dir as in openat(2), and replaces an existing
// file. linkat(2) cannot replace a file, so f first gets a temporary name.
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

// Discard closes and removes the draft, unless it is nil or Commit or Discard was called before.
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

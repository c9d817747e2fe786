package outfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Draft is a file that gets its name when it is whole. Until then what has that name stays as it is.
type Draft struct {
	Temp string // beside Name
	Name string // absolute; where links of ours lead to

	// Rename and Remove do it with Temp. They may be set to what does it for a process that may not any more.
	Rename, Remove func() error

	f *os.File
}

// NewDraft makes a draft, in the directory where it will be. Errors name the file and say what can be done.
func NewDraft(name string) (*Draft, error) {
	d, err := newDraft(name)
	if err != nil {
		return nil, explain(name, err)
	}
	return d, nil
}

func newDraft(name string) (*Draft, error) {
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
	if d.f, err = os.CreateTemp(filepath.Dir(to), "."+filepath.Base(to)+".*"); err != nil { // mode 0600
		return nil, err
	}
	d.Temp = d.f.Name()
	d.Rename = func() error { return os.Rename(d.Temp, d.Name) }
	d.Remove = func() error { return os.Remove(d.Temp) }
	return d, nil
}

// Commit writes the file and gives it its name. After an error there is neither it nor the draft.
func (d *Draft) Commit(b []byte) error {
	_, err := d.f.Write(b)
	err = errors.Join(err, d.f.Close())
	d.f = nil
	if err == nil {
		err = d.Rename()
	}
	if err == nil {
		return nil
	}
	var link *os.LinkError
	if errors.As(err, &link) {
		err = link.Err
	}
	err = explain(d.Name, err)
	if rerr := d.Remove(); rerr != nil && !errors.Is(rerr, fs.ErrNotExist) {
		err = errors.Join(err, rerr)
	}
	return err
}

// Discard removes the draft, unless there was a Commit.
func (d *Draft) Discard() error {
	if d == nil || d.f == nil {
		return nil
	}
	err := errors.Join(d.f.Close(), d.Remove())
	d.f = nil
	if err != nil {
		return fmt.Errorf("%s: %w", d.Temp, err)
	}
	return nil
}

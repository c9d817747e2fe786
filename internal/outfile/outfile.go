// Package outfile makes the files that a command writes for as long as it runs: captures, consoles.
// A second command that was given the same name is refused, before it has harmed what the first one
// wrote.
package outfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// ErrInUse says that another process writes to the file.
var ErrInUse = errors.New("in use: another process writes to it")

// Create opens a file for writing, and empties it. Until it is closed, no other Create has it. A
// FIFO must have its reader already: without one its opening would wait, and no signal ends that.
// Errors name the file and say what can be done.
func Create(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|unix.O_NONBLOCK, 0o644)
	if errors.Is(err, unix.ENXIO) {
		return nil, fmt.Errorf("%s: a FIFO that nobody reads: start its reader first", name)
	}
	if err != nil {
		return nil, explain(name, err)
	}
	st, err := f.Stat()
	if err == nil && st.Mode().IsRegular() { // of a device or FIFO there may be several writers, and nothing to be emptied
		err = own(f)
	}
	if err != nil {
		return nil, errors.Join(explain(name, err), f.Close())
	}
	return f, nil
}

func own(f *os.File) error {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return ErrInUse
	}
	return f.Truncate(0) // also on a file system without locks
}

// explain says what can be done.
func explain(name string, err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		err = p.Err
	}
	what := "give another name"
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		what = "make its directory, or give another name"
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		what = "free some, or give a name elsewhere"
	}
	return fmt.Errorf("%s: %w: %s", name, err, what)
}

// Package outfile makes the files that a command writes for as long as it runs: captures, consoles.
// A second command that was given the same name is refused, before it has harmed what the first one
// wrote.
//
// The files are their user's alone, mode 0600: they hold what guests have said. A symbolic link at the
// end of a name is followed only if our user or root made it, so nobody else chooses which file is
// emptied. (Links on the way are for who may write there; sysctl fs.protected_symlinks looks at /tmp.)
package outfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrInUse says that another process writes to the file.
var ErrInUse = errors.New("in use: another process writes to it")

// ErrLink says that the file is a symbolic link of another user.
var ErrLink = errors.New("a symbolic link that another user has made")

// mode is that of a file that is made, or emptied: what was read by others before is so no longer.
const mode = 0o600

// Create opens a file for writing, and empties it. Until it is closed, no other Create has it. A
// FIFO must have its reader already: without one its opening would wait, and no signal ends that.
// Errors name the file and say what can be done.
func Create(name string) (*os.File, error) {
	f, err := open(name)
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

// open opens a file, or what links of ours lead to. (A link may be exchanged before it is read, but not
// by others than those who may write its directory.)
func open(name string) (*os.File, error) {
	const flags = os.O_WRONLY | os.O_CREATE | unix.O_NONBLOCK
	for range 40 { // as Linux does (path_resolution(7))
		f, err := os.OpenFile(name, flags|unix.O_NOFOLLOW, mode)
		if !errors.Is(err, unix.ELOOP) {
			return f, err
		}
		st, err := os.Lstat(name)
		if err != nil {
			return nil, err
		}
		if !ours(st) {
			return nil, ErrLink
		}
		if strings.HasPrefix(name, "/proc/") { // /dev/stdout ends there, at a link that is no name
			return os.OpenFile(name, flags, mode)
		}
		to, err := os.Readlink(name)
		if err != nil {
			return nil, err
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(filepath.Dir(name), to)
		}
		name = to
	}
	return nil, unix.ELOOP
}

// ours says whether our user, or root, has made a file.
func ours(st fs.FileInfo) bool {
	sys, ok := st.Sys().(*syscall.Stat_t)
	return ok && (sys.Uid == 0 || int(sys.Uid) == os.Geteuid())
}

func own(f *os.File) error {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return ErrInUse
	}
	if st, err := f.Stat(); err == nil && ours(st) {
		_ = f.Chmod(mode) // a file system without modes, perhaps
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

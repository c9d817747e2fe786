// Package outfile makes files that a command writes while it runs, such as captures and consoles.
//
// Files that it makes have mode 0600, because they contain data of guests; Replace makes files that all can
// read. Create follows a symbolic link at the end of a name only if our user or root owns it: no such link of another
// user chooses which file is emptied. NewDraft checks the owner of the first link only.
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

// ErrInUse means that the file is locked (flock(2)), as by another Create whose file is still open.
var ErrInUse = errors.New("in use: another process writes to it")

// ErrLink means that the file is a symbolic link of a user other than ours and root.
var ErrLink = errors.New("a symbolic link that another user has made")

const mode = 0o600

// Create opens a file for writing, or makes it. It empties a regular file, locks it (flock(2)) against another Create
// if the file system can, and sets its mode to 0600 if our user or root owns it. A FIFO must already have a reader,
// because the open does not wait. Errors name the file and advise what to do.
func Create(name string) (*os.File, error) {
	f, err := open(name)
	if errors.Is(err, unix.ENXIO) {
		return nil, fmt.Errorf("%s: a FIFO that nobody reads: start its reader first", name)
	}
	if err != nil {
		return nil, Explain(name, err)
	}
	st, err := f.Stat()
	if err == nil && st.Mode().IsRegular() { // a device or FIFO may have several writers
		err = takeOver(f)
	}
	if err != nil {
		return nil, errors.Join(Explain(name, err), f.Close())
	}
	return f, nil
}

// open opens or makes a file. If the name is a symbolic link of our user or root, it opens the link's target; a link of
// another user is ErrLink.
func open(name string) (*os.File, error) {
	const flags = os.O_WRONLY | os.O_CREATE | unix.O_NONBLOCK
	for range 40 { // at most 40 links, as in Linux (path_resolution(7))
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
		if strings.HasPrefix(name, "/proc/") { // /dev/stdout ends there, at a link without a path
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

func ours(st fs.FileInfo) bool {
	sys, ok := st.Sys().(*syscall.Stat_t)
	return ok && (sys.Uid == 0 || int(sys.Uid) == os.Geteuid())
}

func takeOver(f *os.File) error {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return ErrInUse
	}
	if st, err := f.Stat(); err == nil && ours(st) {
		_ = f.Chmod(mode) // may fail, as on a file system without modes
	}
	return f.Truncate(0) // even if the file system has no locks
}

// Explain returns err, an error of a system call about a file, with the file's name and advice, and without the names
// in err, which may be temporary. It returns nil if err is nil.
func Explain(name string, err error) error {
	var path *fs.PathError
	var link *os.LinkError
	var call *os.SyscallError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &path):
		err = path.Err
	case errors.As(err, &link):
		err = link.Err
	case errors.As(err, &call):
		err = call.Err
	}
	what := "give another name"
	switch {
	case errors.Is(err, unix.ENOENT):
		what = "make its directory, or give another name"
	case errors.Is(err, unix.ENOTDIR):
		what = "give a name in a directory"
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM), errors.Is(err, unix.EROFS):
		what = "give a name where you may write"
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		what = "free some, or give a name elsewhere"
	}
	return fmt.Errorf("%s: %w: %s", name, err, what)
}

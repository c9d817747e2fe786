package assets

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Errors for things that a machine lacks. Each comes inside a *Missing, which also has the advice.
var (
	ErrNoQEMU    = errors.New("no usable QEMU")
	ErrNoKernel  = errors.New("no guest kernel")
	ErrNoApt     = errors.New("not installed")
	ErrNoMirror  = errors.New("no Debian mirror known")
	ErrNoKeyring = errors.New("no keyring of the Debian archive")
	ErrNoNetwork = errors.New("package mirror not reachable")
	ErrNoSpace   = errors.New("not enough space")
	ErrNoCache   = errors.New("no cache directory")
	ErrOffline   = errors.New("not in the cache, and downloads are off")
)

// ErrNoPackage is the error for a suite without a package of the name.
var ErrNoPackage = errors.New("no package")

// Advice that several errors share.
const (
	fixSpace = "free some, or set " + EnvCache + " to a directory elsewhere"
	fixWrite = "set " + EnvCache + " to a directory that you may write"
	giveBoth = "give QEMU and a kernel yourself (--qemu, --kernel, --modules)"
)

// Missing is the error for something that this machine lacks, with advice for the user (exit status
// 3 of the command).
type Missing struct {
	What string // what is missing or unusable
	Err  error  // one of the errors above, or of another package that returns a Missing, or an error that wraps one
	Fix  string // the advice
}

func (m *Missing) Error() string { return fmt.Sprintf("%s: %v: %s", m.What, m.Err, m.Fix) }

// Unwrap returns Err.
func (m *Missing) Unwrap() error { return m.Err }

// cacheError returns an error of the cache in dir.
func cacheError(dir string, sentinel, err error, fix string) *Missing {
	return &Missing{What: "cache " + dir, Err: fmt.Errorf("%w: %w", sentinel, err), Fix: fix}
}

// CacheError adds advice to an error of the cache in dir, if the user can do something about it:
// the disk is full, or the cache may not be written.
func CacheError(dir string, err error) error {
	var missing *Missing
	switch {
	case err == nil, errors.As(err, &missing):
		return err
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT), errors.Is(err, unix.EFBIG):
		if p := (*fs.PathError)(nil); errors.As(err, &p) {
			err = p
		}
		return cacheError(dir, ErrNoSpace, err, fixSpace)
	case below(dir, err) &&
		(errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS) || errors.Is(err, unix.ENOTDIR)):
		return cacheError(dir, ErrNoCache, err, fixWrite)
	}
	return err
}

// below reports whether an error is about a file in dir; of a rename, the new name counts.
func below(dir string, err error) bool {
	var p *fs.PathError
	var l *os.LinkError
	switch {
	case errors.As(err, &p):
		return strings.HasPrefix(p.Path, dir)
	case errors.As(err, &l):
		return strings.HasPrefix(l.New, dir)
	}
	return false
}

package assets

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Errors for things that a machine lacks, inside a *Missing.
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

// ErrNoPackage is the error for a package that a suite lacks.
var ErrNoPackage = errors.New("no package")

// Values of Missing.Fix, or parts of them.
const (
	fixSpace = "free some, or set " + EnvCache + " to a directory elsewhere"
	fixWrite = "set " + EnvCache + " to a directory that you may write"
	giveBoth = "give QEMU and a kernel yourself (--qemu, --kernel, --modules)"
)

// Missing is the error for something that this machine lacks or cannot use, with advice.
type Missing struct {
	What string // what is missing or unusable
	Err  error
	Fix  string
}

func (m *Missing) Error() string { return fmt.Sprintf("%s: %v: %s", m.What, m.Err, m.Fix) }

// Unwrap returns Err.
func (m *Missing) Unwrap() error { return m.Err }

func cacheError(dir string, sentinel, err error, fix string) *Missing {
	return &Missing{What: "cache " + dir, Err: fmt.Errorf("%w: %w", sentinel, err), Fix: fix}
}

// CacheError returns err as a *Missing with advice, if the disk or a quota is full, a file is at its size limit, or a
// path in dir, the cache, may not be read or written. It returns other errors, and errors that have a
// *Missing, as they are.
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

// below reports whether an error is about dir or a file in it, by its path.
func below(dir string, err error) bool {
	var p *fs.PathError
	var l *os.LinkError
	switch {
	case errors.As(err, &p):
		return within(dir, p.Path)
	case errors.As(err, &l):
		return within(dir, l.New)
	}
	return false
}

func within(dir, name string) bool {
	return name == dir || strings.HasPrefix(name, strings.TrimSuffix(dir, "/")+"/")
}

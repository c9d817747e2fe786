package qemu

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// What a machine lacks. Each comes inside a *Missing, which also says what to do.
var (
	ErrNoQEMU    = errors.New("no usable QEMU")
	ErrNoKernel  = errors.New("no guest kernel")
	ErrNoApt     = errors.New("not installed")
	ErrNoMirror  = errors.New("no Debian mirror known")
	ErrNoKeyring = errors.New("no keyring of the Debian archive")
	ErrNoNetwork = errors.New("package mirror not reachable")
	ErrNoSpace   = errors.New("not enough space")
	ErrNoMemory  = errors.New("not enough memory")
	ErrNoCache   = errors.New("no cache directory")
	ErrNoDevice  = errors.New("this QEMU lacks a device")
	ErrModule    = errors.New("the guest's kernel does not load module")
	ErrOffline   = errors.New("not in the cache, and only that was asked for")
)

// Missing says that this machine lacks something, and what its owner can do (the command's exit status 3).
type Missing struct {
	What string // what is missing or unusable
	Err  error  // one of the sentinels above, or wraps one
	Fix  string // what to do
}

func (m *Missing) Error() string { return fmt.Sprintf("%s: %v: %s", m.What, m.Err, m.Fix) }

// Unwrap gives the sentinel.
func (m *Missing) Unwrap() error { return m.Err }

// CacheError says what can be done about an error of the cache in dir, if it is one that its owner can do something about: it is
// full, or may not be written.
func CacheError(dir string, err error) error {
	var missing *Missing
	switch {
	case err == nil, errors.As(err, &missing):
		return err
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT), errors.Is(err, unix.EFBIG):
		if p := (*fs.PathError)(nil); errors.As(err, &p) {
			err = p
		}
		return &Missing{What: "cache " + dir, Err: fmt.Errorf("%w: %w", ErrNoSpace, err), Fix: "free some, or set " + EnvCache + " to a directory elsewhere"}
	case below(dir, err) && (errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS) || errors.Is(err, unix.ENOTDIR)):
		return &Missing{What: "cache " + dir, Err: fmt.Errorf("%w: %w", ErrNoCache, err), Fix: "set " + EnvCache + " to a directory that you may write"}
	}
	return err
}

// MemoryError says what can be done about an error of memory that lies in a file of ours, if it is that there is too little of it.
func MemoryError(what string, err error) error {
	if !errors.Is(err, unix.ENOMEM) && !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EFBIG) {
		return err
	}
	if p := (*fs.PathError)(nil); errors.As(err, &p) {
		err = p.Err
	}
	return &Missing{What: what, Err: fmt.Errorf("%w: %w", ErrNoMemory, err), Fix: "free some, or raise the limit of files (ulimit -f) or of the container"}
}

// below says whether an error is about a file in dir.
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

// How a run can end other than by power-off or Close. Each comes inside a *RunError.
var (
	ErrExited      = errors.New("QEMU ended early")
	ErrKernelPanic = errors.New("guest kernel panic")
	ErrReset       = errors.New("guest reset itself")
	ErrNoInit      = errors.New("guest's init did not report in time")
	ErrPowerOff    = errors.New("guest powered off before its init reported")
	ErrTimeLimit   = errors.New("time limit of the run reached")
	ErrStopped     = errors.New("QEMU stopped the guest")
	ErrAgent       = errors.New("guest does not answer any more")
)

// RunError is the end of a run that went wrong, with what the guest and QEMU said last.
type RunError struct {
	Name    string   // the machine's
	Err     error    // one of the sentinels above, a context's error, or wraps one
	Detail  string   // may be empty
	Console []string // the last lines of the guest's console
	Stderr  []string // the last lines of QEMU's own output
}

// Unwrap gives the cause.
func (e *RunError) Unwrap() error { return e.Err }

func (e *RunError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %v", e.Name, e.Err)
	if e.Detail != "" {
		b.WriteString(": " + e.Detail)
	}
	for _, part := range []struct {
		name  string
		lines []string
	}{{"QEMU said", e.Stderr}, {"last lines of its console", e.Console}} {
		if len(part.lines) > 0 {
			fmt.Fprintf(&b, "\n%s:\n\t%s", part.name, strings.Join(part.lines, "\n\t"))
		}
	}
	return b.String()
}

// Package trusted checks the owner and mode of a directory or file against a Rule.
//
// It does not check the directories above: whoever may rename there can replace the directory or file. It ignores
// access control lists.
//
// The package is not API (README, Stability).
package trusted

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Err is the cause of errors for a directory or file that does not meet a Rule.
var Err = errors.New("not to be trusted")

// Rule is a requirement for a directory or a file.
type Rule struct {
	Forbidden uint32 // mode bits that must be clear
	Roots     bool   // the owner may also be root; else only this user (the process's effective uid)
}

var (
	// Private requires that this user is the owner, and that the mode gives the group and others no access.
	Private = Rule{Forbidden: 0o077}
	// ReadOnly requires that this user or root is the owner, and that the mode forbids the group and others to write.
	ReadOnly = Rule{Forbidden: 0o022, Roots: true}
)

// OpenDir opens a directory by O_PATH and checks it. It fails if the last element of path is a symbolic link. The
// caller closes the result.
func (r Rule) OpenDir(path string) (*os.File, error) {
	d, err := os.OpenFile(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err = unix.Fstat(int(d.Fd()), &st); err == nil {
		err = r.Check(path, &st)
	}
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// Check checks the owner and mode in st, which the caller has read from the file at path. It ignores the mode of a
// symbolic link.
func (r Rule) Check(path string, st *unix.Stat_t) error { return r.check(path, st, os.Geteuid()) }

func (r Rule) check(path string, st *unix.Stat_t, ours int) error {
	switch uid := int(st.Uid); {
	case uid != ours && !(r.Roots && uid == 0):
		return &refused{path, fmt.Sprintf("belongs to user %d", uid), true}
	case st.Mode&unix.S_IFMT != unix.S_IFLNK && st.Mode&r.Forbidden != 0:
		why := fmt.Sprintf("open to others, mode %#o: chmod %o it", st.Mode&0o777, st.Mode&0o777&^r.Forbidden)
		return &refused{path, why, false}
	}
	return nil
}

type refused struct {
	path, why string
	owner     bool
}

func (e *refused) Error() string { return fmt.Sprintf("%s (%v: %s)", e.path, Err, e.why) }
func (e *refused) Unwrap() error { return Err }

// OtherOwner reports whether err is an error of Check or OpenDir about a wrong owner.
func OtherOwner(err error) bool {
	var r *refused
	return errors.As(err, &r) && r.owner
}

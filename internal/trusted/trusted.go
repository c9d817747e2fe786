// Package trusted opens directories in which only this user, or root, can have put anything.
//
// What is checked is the owner and the mode of the directory that was opened, and of no directory above it: whoever may
// rename there can put another directory in its place afterwards. An access control list is its owner's decision.
//
// The package is not API (README, Stability).
package trusted

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Err is wrapped by the error of a directory or a file that others could have changed.
var Err = errors.New("not to be trusted")

// Rule is what a directory or a file has to be.
type Rule struct {
	Forbidden uint32 // bits of its mode that it may not have
	Roots     bool   // it may be root's; else it is this user's
}

var (
	// Private is the rule of what no other user has to do with.
	Private = Rule{Forbidden: 0o077}
	// ReadOnly is the rule of what others may read, and only this user or root can have written.
	ReadOnly = Rule{Forbidden: 0o022, Roots: true}
)

// OpenDir opens a directory, which may be no link, by O_PATH, and checks it. The caller closes what it gives.
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

// Check checks what was found at a path. Of a link the mode says nothing, and is not looked at.
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

// refused is an error of Check.
type refused struct {
	path, why string
	owner     bool // it has another owner; false: a wrong mode
}

func (e *refused) Error() string { return fmt.Sprintf("%s (%v: %s)", e.path, Err, e.why) }
func (e *refused) Unwrap() error { return Err }

// OtherOwner reports whether an error says that something belongs to another user.
func OtherOwner(err error) bool {
	var r *refused
	return errors.As(err, &r) && r.owner
}

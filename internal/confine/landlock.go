package confine

import (
	"errors"
	"fmt"

	"github.com/landlock-lsm/go-landlock/landlock"
	llsys "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"
)

// ErrNoLandlock means that this kernel has no Landlock, or does not use it.
var ErrNoLandlock = errors.New("the kernel has no Landlock, or does not use it (CONFIG_SECURITY_LANDLOCK, lsm= on " +
	"its command line)")

// LandlockABI returns the kernel's version of Landlock; 0: none.
func LandlockABI() int {
	v, err := llsys.LandlockGetABIVersion()
	if err != nil {
		return 0
	}
	return v
}

// pinned has open descriptors of the paths of Files: a rule is about an inode, and procfs makes a new inode for a
// directory that nobody uses.
var pinned []int

// scopes are the scopes of Landlock in use. The scope of signals would also block the signal with which the
// kernel ends this process's children when it dies (PR_SET_PDEATHSIG).
const scopes = landlock.ScopedSet(llsys.ScopeAbstractUnixSocket)

// Files removes from all threads, permanently, as far as the kernel's Landlock can: access to the file system, except
// for reading these paths (and except calls that Landlock does not control, such as stat and chmod); bind and connect
// of TCP sockets; and connections to abstract Unix sockets of processes that are not confined so. Open files stay
// usable.
func Files(paths []Path) error {
	if LandlockABI() == 0 {
		return ErrNoLandlock
	}
	const file = landlock.AccessFSSet(llsys.AccessFSReadFile)
	const dir = file | llsys.AccessFSReadDir
	var rules []landlock.Rule
	for _, p := range paths {
		fd, err := unix.Open(p.Path, unix.O_PATH|unix.O_CLOEXEC, 0)
		if p.Optional && err == unix.ENOENT {
			continue
		}
		var st unix.Stat_t
		if err == nil {
			pinned = append(pinned, fd)
			err = unix.Fstat(fd, &st)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", p.Path, err)
		}
		rights := file
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			rights = dir
		}
		rules = append(rules, landlock.PathAccess(rights, p.Path))
	}
	config := landlock.V7
	config.Scoped = scopes
	if err := config.BestEffort().Restrict(rules...); err != nil {
		return fmt.Errorf("landlock: %w", err)
	}
	return nil
}

package confine

import (
	"errors"
	"fmt"

	"github.com/landlock-lsm/go-landlock/landlock"
	llsys "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"
)

// ErrNoLandlock says that this kernel has no Landlock, or not in use.
var ErrNoLandlock = errors.New("the kernel has no Landlock, or does not use it (CONFIG_SECURITY_LANDLOCK, lsm= on " +
	"its command line)")

// LandlockABI is the version of Landlock that the kernel has; 0: none. 1 is files only; 4 and newer
// know TCP too, 6 abstract sockets.
func LandlockABI() int {
	v, err := llsys.LandlockGetABIVersion()
	if err != nil {
		return 0
	}
	return v
}

// pinned are the paths, held open: procfs makes a directory's inode anew when nobody has it, and a
// rule is about an inode.
var pinned []int

// scopes are what of Landlock's scopes is in use: not that of signals. It would hold for the one, too,
// by which the kernel ends our children when we die (PR_SET_PDEATHSIG): they would outlive a process
// that is killed. Calls leaves no way to signal others.
const scopes = landlock.ScopedSet(llsys.ScopeAbstractUnixSocket)

// Files leaves the process nothing of the file system but reading these paths, and takes binding
// and connecting of TCP sockets, and abstract sockets of others, as far as the kernel knows these.
// What is open stays open. It is for all threads, and for ever.
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
		if err != nil {
			return fmt.Errorf("%s: %w", p.Path, err)
		}
		pinned = append(pinned, fd)
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
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

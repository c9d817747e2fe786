package stat

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/sockfile"
	"vnic.dev/vnic/internal/trusted"
)

const suffix = ".sock"

// EnvDir is the environment variable that, if not empty, names the only directory of sockets.
const EnvDir = "VNIC_RUNTIME_DIR"

// candidates returns the directories in which sockets may lie, in the order in which a server tries them.
func candidates() (dirs []string) {
	if dir := os.Getenv(EnvDir); dir != "" {
		return []string{dir}
	}
	uid := os.Geteuid()
	if base := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(base) {
		dirs = append(dirs, filepath.Join(base, "vnic"))
	}
	if uid == 0 {
		dirs = append(dirs, "/run/vnic") // /run/user/0 exists only while root is logged in
	} else {
		dirs = append(dirs, fmt.Sprintf("/run/user/%d/vnic", uid))
	}
	return append(dirs, fmt.Sprintf("/tmp/vnic-%d", uid))
}

// openDir opens a directory of sockets. If create is true, it first makes the directory if there is none. It fails
// unless this user owns the directory and the mode gives the group and others no access (trusted.Private).
func openDir(path string, create bool) (*os.File, error) {
	if create {
		if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return nil, err
		}
	}
	return trusted.Private.OpenDir(path)
}

// within returns a path to name in an open directory: short enough for a socket's address, and valid in this process
// while d is open.
func within(d *os.File, name string) string { return fmt.Sprintf("/proc/self/fd/%d/%s", d.Fd(), name) }

func sockets(d *os.File) map[int]string {
	list := map[int]string{}
	entries, _ := os.ReadDir(within(d, "."))
	for _, e := range entries {
		if pid, err := strconv.Atoi(strings.TrimSuffix(e.Name(), suffix)); err == nil && pid > 0 &&
			e.Type() == os.ModeSocket {
			list[pid] = e.Name()
		}
	}
	return list
}

// sweep removes the sockets that are named after the ids of ended processes and at which no process listens.
func sweep(d *os.File) {
	for pid, name := range sockets(d) {
		// A process in another PID namespace may have an id that no process has here: removeStale checks for listeners.
		if errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
			removeStale(d, name)
		}
	}
}

func removeStale(d *os.File, name string) {
	if _, err := sockfile.Listening(within(d, name)); errors.Is(err, unix.ECONNREFUSED) {
		_ = unix.Unlinkat(int(d.Fd()), name, 0)
	}
}

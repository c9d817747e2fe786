package stat

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/trusted"
)

// suffix ends the name of a socket; its process's number is before it.
const suffix = ".sock"

// EnvDir names the directory of sockets; without it there is a choice: see candidates.
const EnvDir = "VNIC_RUNTIME_DIR"

// candidates are where sockets may lie, best first. A server takes the first that will do, a client
// looks in all: they may have been started from different places.
func candidates() (dirs []string) {
	if dir := os.Getenv(EnvDir); dir != "" {
		return []string{dir}
	}
	uid := os.Geteuid()
	if base := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(base) {
		dirs = append(dirs, filepath.Join(base, "vnic"))
	}
	if uid == 0 {
		dirs = append(dirs, "/run/vnic") // root's of /run/user is there only while root is logged in
	} else {
		dirs = append(dirs, fmt.Sprintf("/run/user/%d/vnic", uid))
	}
	return append(dirs, fmt.Sprintf("/tmp/vnic-%d", uid))
}

// openDir opens a directory of sockets, and makes it first if told to. It must be this user's and
// nobody else's: what is below is then what this user has put there.
func openDir(path string, create bool) (*os.File, error) {
	if create {
		if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return nil, err
		}
	}
	return trusted.Private.OpenDir(path)
}

// within is a path to something in an open directory: short enough for a socket's address, and in
// that directory whatever happens to its name. It is good while d is open.
func within(d *os.File, name string) string { return fmt.Sprintf("/proc/self/fd/%d/%s", d.Fd(), name) }

// sockets lists those in a directory by process.
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

// sweep removes the sockets of processes that are gone.
func sweep(d *os.File) {
	for pid, name := range sockets(d) {
		// A process of another PID namespace may have a number that is free here: so nothing may listen
		// either. And one that is about to listen is alive.
		if errors.Is(unix.Kill(pid, 0), unix.ESRCH) && errors.Is(connects(within(d, name)), unix.ECONNREFUSED) {
			_ = unix.Unlinkat(int(d.Fd()), name, 0)
		}
	}
}

// connects returns nil if a process listens at a socket. It does not wait.
func connects(path string) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	return unix.Connect(fd, &unix.SockaddrUnix{Name: path})
}

package assets

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// hold prevents removal of a tree from the cache by a shared flock on its directory, which needs no
// write permission and ends with this process at the latest. It also sets the tree's last use. It
// returns a plain descriptor, because the garbage collector would close an os.File.
func hold(dir string) (fd int, err error) {
	if fd, err = unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return -1, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	for err = unix.EINTR; errors.Is(err, unix.EINTR); { // an exclusive lock is only held briefly
		err = unix.Flock(fd, unix.LOCK_SH)
	}
	if errors.Is(err, unix.ENOLCK) || errors.Is(err, unix.EOPNOTSUPP) { // a file system without locks
		err = nil
	}
	var held, there unix.Stat_t
	if err == nil {
		err = errors.Join(unix.Fstat(fd, &held), unix.Stat(dir, &there))
	}
	if err == nil && (held.Dev != there.Dev || held.Ino != there.Ino) {
		err = os.ErrNotExist // the tree was removed and replaced
	}
	if err != nil {
		return -1, errors.Join(&os.PathError{Op: "lock", Path: dir, Err: err}, unix.Close(fd))
	}
	now := time.Now()
	// An error does not matter: it means that we may not write the cache, and then we remove nothing
	// from it either.
	_ = os.Chtimes(dir, now, now)
	return fd, nil
}

// holdAlone locks a directory exclusively; it returns false if a process holds it. The caller
// closes the file.
func holdAlone(dir *os.Root, name string) (*os.File, bool) {
	f, err := dir.OpenFile(name, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, true // unreadable, or gone: removing it will return the error
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
		_ = f.Close()
		return nil, false
	}
	return f, true
}

// users returns the processes that have a file below dir open, mapped, as program or as working
// directory, with the paths relative to dir. It sees only this user's processes, or all for root,
// and leaves this process out.
func users(dir string) map[int][]string {
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
	found := map[int][]string{}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		for _, path := range opened(pid) {
			if name, below := strings.CutPrefix(path, dir+"/"); below && !slices.Contains(found[pid], name) {
				found[pid] = append(found[pid], name)
			}
		}
	}
	return found
}

// opened lists the paths that a process uses, as far as we may read them.
func opened(pid int) (paths []string) {
	base := fmt.Sprintf("/proc/%d/", pid)
	links := []string{base + "exe", base + "cwd"}
	fds, _ := os.ReadDir(base + "fd")
	for _, fd := range fds {
		links = append(links, base+"fd/"+fd.Name())
	}
	for _, l := range links {
		if to, err := os.Readlink(l); err == nil {
			paths = append(paths, to)
		}
	}
	maps, _ := os.ReadFile(base + "maps")
	for line := range strings.Lines(string(maps)) {
		if i := strings.IndexByte(line, '/'); i >= 0 { // address perms offset dev inode path: proc_pid_maps(5)
			paths = append(paths, strings.TrimSuffix(line[i:], "\n"))
		}
	}
	return paths
}

// commandOf returns a process's command name.
func commandOf(pid int) string {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	return strings.TrimSpace(string(b))
}

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

// hold keeps a tree of the cache from being removed: a shared flock on its directory, which needs
// no right to write there and ends with this process at the latest. It also marks the tree as used
// now. The descriptor is a plain one: a file would be closed when nothing refers to it any more.
func hold(dir string) (fd int, err error) {
	if fd, err = unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return -1, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	for err = unix.EINTR; errors.Is(err, unix.EINTR); { // a process that holds it alone does so for a moment
		err = unix.Flock(fd, unix.LOCK_SH)
	}
	if errors.Is(err, unix.ENOLCK) || errors.Is(err, unix.EOPNOTSUPP) { // a file system without locks
		err = nil
	}
	var mine, there unix.Stat_t
	if err == nil {
		err = errors.Join(unix.Fstat(fd, &mine), unix.Stat(dir, &there))
	}
	if err == nil && (mine.Dev != there.Dev || mine.Ino != there.Ino) {
		err = os.ErrNotExist // removed, and another is in its place
	}
	if err != nil {
		return -1, errors.Join(&os.PathError{Op: "lock", Path: dir, Err: err}, unix.Close(fd))
	}
	now := time.Now()
	_ = os.Chtimes(dir, now, now) // no vnic removes anything from a cache that it may not write
	return fd, nil
}

// holdAlone takes a directory that no process holds; false if one does. What it gives is to be closed.
func holdAlone(dir *os.Root, name string) (*os.File, bool) {
	f, err := dir.OpenFile(name, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, true // not ours to read, or gone: removing it will say so
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
		_ = f.Close()
		return nil, false
	}
	return f, true
}

// users finds the processes that have a file below dir open or mapped, run from there or work
// there, by the path of it below dir. It sees those of this user, or all for root; this process is
// not among them.
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

// opened lists what a process has to do with, as far as we may know.
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

// commandOf is a process's name, for a user to recognise.
func commandOf(pid int) string {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	return strings.TrimSpace(string(b))
}

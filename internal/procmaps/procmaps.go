// Package procmaps reads which files a process has mapped (proc_pid_maps(5)).
package procmaps

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Limit is how many bytes of a process's list Read reads at most: a process may have any number of mappings.
const Limit = 1 << 20

// Mapping is a mapping of a file.
type Mapping struct {
	Dev, Ino uint64 // as in stat(2), on most file systems
	Shared   bool   // MAP_SHARED
	Name     string // the line in /proc from its first slash on: "/memfd:ram (deleted)"; "/" if it has none
}

// Read calls visit for file mappings of a process, until visit returns false. complete reports whether the whole list
// was read: it is false if the list cannot be read, if visit returned false, or if the list has Limit bytes or more.
func Read(pid int, visit func(m *Mapping) (more bool)) (complete bool) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return false
	}
	defer f.Close()
	return read(f, visit)
}

func read(text io.Reader, visit func(m *Mapping) (more bool)) (complete bool) {
	limited := &io.LimitedReader{R: text, N: Limit}
	lines := bufio.NewScanner(limited)
	for lines.Scan() {
		if m, ok := parse(lines.Text()); ok && !visit(&m) {
			return false
		}
	}
	return lines.Err() == nil && limited.N > 0
}

// parse parses a line: range, permissions, offset, device, inode, name. ok is false for anonymous memory, and for a
// line that lacks one of these.
func parse(line string) (m Mapping, ok bool) {
	f := strings.Fields(line)
	if len(f) < 6 || len(f[1]) != 4 {
		return m, false
	}
	major, minor, _ := strings.Cut(f[3], ":")
	ma, err1 := strconv.ParseUint(major, 16, 32)
	mi, err2 := strconv.ParseUint(minor, 16, 32)
	ino, err3 := strconv.ParseUint(f[4], 10, 64)
	if err1 != nil || err2 != nil || err3 != nil || ino == 0 {
		return m, false
	}
	_, name, _ := strings.Cut(line, "/")
	return Mapping{unix.Mkdev(uint32(ma), uint32(mi)), ino, f[1][3] == 's', "/" + name}, true
}

package broker

import (
	"bufio"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// OldMemory says whether a process has memfds mapped whose names begin with prefix, and not the one
// that is own.
func OldMemory(pid int, own *os.File, prefix string) bool {
	var st unix.Stat_t
	if own == nil || unix.Fstat(int(own.Fd()), &st) != nil {
		return false
	}
	return oldMemory(pid, uint64(st.Dev), st.Ino, prefix)
}

func oldMemory(pid int, dev, ino uint64, prefix string) bool {
	maps, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil { // another user's, or gone
		return false
	}
	defer maps.Close()
	old := false
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		_, name, ok := strings.Cut(lines.Text(), " /memfd:"+prefix)
		if !ok || name == "" {
			continue
		}
		f := strings.Fields(lines.Text()) // proc_pid_maps(5): range, permissions, offset, device, inode, name
		if f[3] == fmt.Sprintf("%02x:%02x", unix.Major(dev), unix.Minor(dev)) && f[4] == fmt.Sprint(ino) {
			return false
		}
		old = true
	}
	return old
}

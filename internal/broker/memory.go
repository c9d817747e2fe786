package broker

import (
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/procmaps"
)

// OldMemory reports whether a process has mapped memfds whose names begin with prefix, but not the
// memfd maps.
func OldMemory(pid int, maps *os.File, prefix string) bool {
	var st unix.Stat_t
	if maps == nil || unix.Fstat(int(maps.Fd()), &st) != nil {
		return false
	}
	return oldMemory(pid, uint64(st.Dev), st.Ino, prefix)
}

func oldMemory(pid int, dev, ino uint64, prefix string) (old bool) {
	hasOwn := false
	procmaps.Read(pid, func(m *procmaps.Mapping) bool { // no mappings: another user's process, or an ended one
		if name, ok := strings.CutPrefix(m.Name, "/memfd:"+prefix); ok && name != "" {
			hasOwn = m.Dev == dev && m.Ino == ino
			old = true
		}
		return !hasOwn
	})
	return old && !hasOwn
}

package broker

import (
	"strings"

	"vnic.dev/vnic/internal/procmaps"
)

// oldMemory reports whether a process has mapped memfds whose names begin with prefix, but none of these with this
// device and inode, as far as procmaps.Read reads the process's list of mappings.
func oldMemory(pid int, dev, ino uint64, prefix string) (old bool) {
	hasOwn := false
	procmaps.Read(pid, func(m *procmaps.Mapping) bool {
		if name, ok := strings.CutPrefix(m.Name, "/memfd:"+prefix); ok && name != "" {
			hasOwn = m.Dev == dev && m.Ino == ino
			old = true
		}
		return !hasOwn
	})
	return old && !hasOwn
}

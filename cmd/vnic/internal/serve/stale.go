package serve

import (
	"bufio"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/lab"
)

// hasOldGPU says whether a process has memory of a vnic's GPU mapped, and none of this one's: a
// QEMU that lives on has that of the vnic before us, to which our NIC has no way. A QEMU that has
// just been started connects before it maps anything.
func hasOldGPU(pid int, own *os.File) bool {
	var st unix.Stat_t
	if own == nil || unix.Fstat(int(own.Fd()), &st) != nil {
		return false
	}
	maps, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil { // another user's, or gone
		return false
	}
	defer maps.Close()
	old := false
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		_, name, ok := strings.Cut(lines.Text(), " /memfd:"+lab.GPUFilePrefix)
		if !ok || name == "" {
			continue
		}
		f := strings.Fields(lines.Text()) // proc_pid_maps(5): range, permissions, offset, device, inode, name
		if f[3] == fmt.Sprintf("%02x:%02x", unix.Major(st.Dev), unix.Minor(st.Dev)) && f[4] == fmt.Sprint(st.Ino) {
			return false
		}
		old = true
	}
	return old
}

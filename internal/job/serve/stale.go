package serve

import (
	"os"

	"vnic.dev/vnic/internal/broker"
	"vnic.dev/vnic/internal/lab"
)

// hasOldGPU reports whether a process has mapped GPU memory of an earlier vnic, and none of this one's. That holds
// for a QEMU that outlives its vnic: this vnic's NIC cannot reach that memory. A QEMU that has just been started
// connects before it maps anything.
func (p *port) hasOldGPU(pid int, maps *os.File) bool {
	if p.outside != nil {
		return p.outside.OldMemory(pid, maps)
	}
	return broker.OldMemory(pid, maps, lab.GPUFilePrefix)
}

package serve

import (
	"os"

	"vnic.dev/vnic/cmd/vnic/internal/broker"
	"vnic.dev/vnic/internal/lab"
)

// hasOldGPU says whether a process has memory of a vnic's GPU mapped, and none of this one's: a
// QEMU that lives on has that of the vnic before us, to which our NIC has no way. A QEMU that has
// just been started connects before it maps anything.
func (p *port) hasOldGPU(pid int, maps *os.File) bool {
	if p.outside != nil {
		return p.outside.OldMemory(pid, maps)
	}
	return broker.OldMemory(pid, maps, lab.GPUFilePrefix)
}

package driver

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// A device may be taken away from its guest while it is used (PCI hotplug, or a backend that hangs up). Then the NIC
// stops with an error that is ENODEV and names the device: nothing of it is touched again, and all that waits for it
// ends. So it does when a GPU is taken away that it has written to or read from: what points there is in its rings,
// and it is not told to leave that out. Of a NIC that has not used the GPU, only what names that fails.

// removed is the error of a device that has been taken away.
func removed(what string) error { return fmt.Errorf("%s has been removed: %w", what, unix.ENODEV) }

// bit is a GPU's in a set of GPUs.
func bit(gpu int) uint64 { return 1 << (uint(gpu) % 64) } // more are not in reach: control.MaxGPUs

// RemoveGPU says that a GPU is not there any more, whatever it is called: in a process somebody has to say so, in a
// guest the driver hears it from the kernel. Where the NIC has used it, it stops: Err says why.
func (n *NIC) RemoveGPU(id int) {
	n.gpusMu.Lock()
	defer n.gpusMu.Unlock()
	for _, g := range n.gpus {
		if g.ID == id {
			n.removeGPU(g)
		}
	}
}

// removeGPUAt is RemoveGPU for the GPU at a PCI address, if one is there.
func (n *NIC) removeGPUAt(addr string) {
	n.gpusMu.Lock()
	defer n.gpusMu.Unlock()
	for _, g := range n.gpus {
		if g.PCI == addr {
			n.removeGPU(g)
		}
	}
}

// removeGPU is called under gpusMu.
func (n *NIC) removeGPU(g GPUInfo) {
	n.gpusLost.Or(bit(g.ID)) // before usedGPU looks
	if n.gpusUsed.Load()&bit(g.ID) != 0 {
		n.gone(gpuRemoved(g))
	}
}

// gpuRemoved is the error of what wants a GPU that is gone.
func gpuRemoved(g GPUInfo) error {
	name := fmt.Sprintf("GPU %d", g.ID)
	if g.PCI != "" {
		name += " (" + g.PCI + ")"
	}
	return removed(name)
}

// useGPU notes that rings are about to point to a GPU's memory. It fails if that is gone.
func (n *NIC) useGPU(g *GPUInfo) error {
	b := bit(g.ID)
	if n.gpusUsed.Load()&b == 0 {
		n.gpusUsed.Or(b)
	}
	if n.gpusLost.Load()&b != 0 {
		return gpuRemoved(*g)
	}
	return nil
}

package driver

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// A device may be removed while it is used (PCI hotplug, or a backend that hangs up). Then the NIC stops with
// an error that is ENODEV. It also stops if a GPU is removed that it has used: its rings may point to the
// GPU's memory, and the device cannot be made to skip these entries.

func removed(what string) error { return fmt.Errorf("%s has been removed: %w", what, unix.ENODEV) }

func bit(gpu int) uint64 { return 1 << (uint(gpu) % 64) } // control.MaxGPUs is less than 64

// RemoveGPU tells the driver that a GPU was removed: the NIC stops if it has used the GPU, and otherwise refuses to
// use it. With [Attach] the program must call it; with [OpenPCI] the driver does so itself when the kernel reports
// the removal.
func (n *NIC) RemoveGPU(id int) { n.removeGPU(func(g GPUInfo) bool { return g.ID == id }) }

func (n *NIC) removeGPUAt(addr string) { n.removeGPU(func(g GPUInfo) bool { return g.PCI == addr }) }

func (n *NIC) removeGPU(removed func(g GPUInfo) bool) {
	n.gpusMu.Lock()
	defer n.gpusMu.Unlock()
	for _, g := range n.gpus {
		if !removed(g) {
			continue
		}
		n.gpusLost.Or(bit(g.ID)) // before reading gpusUsed; useGPU writes gpusUsed before it reads gpusLost
		if n.gpusUsed.Load()&bit(g.ID) != 0 {
			n.gone(gpuRemoved(g))
		}
	}
}

func gpuRemoved(g GPUInfo) error {
	name := fmt.Sprintf("GPU %d", g.ID)
	if g.PCI != "" {
		name += " (" + g.PCI + ")"
	}
	return removed(name)
}

// useGPU records that the GPU is used. It fails with ENODEV if the GPU was removed.
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

package guests

import (
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

// The subtests share one boot of two guests.
//
// Invariant: devmem/kernel: Linux's own sockets pass the same suite, over IPv4, IPv6 and loopback.
//
// Invariant: devmem: The clients pass in a guest over Linux's device memory TCP and a mapped dma-buf, without
// any of vnic's code below package devmem; payload lies in the GPU's memory, by the NIC's count.
//
// Invariant: vnic block: what is read from Linux's target is in GPU memory, and what is written from there is
// what the kernel's own initiator reads; payload lies in device memory.
//
// Invariant: guest-images: A disk of a guest's NVMe/TCP target has the same bytes for initiators and for the
// host.
func TestKernelsDrivers(t *testing.T) {
	if testing.Short() {
		t.Skip("boots QEMU")
	}
	w := newLab(t)
	t.Run("nvme", w.nvme)
	t.Run("clients", w.clients)
	t.Run("two models and two GPUs", w.twoModels)
	w.run(t, "conformance", w.conformance)
	w.lives(t)
	testkit.OK(t, w.gve.PowerOff(t.Context()))
	testkit.OK(t, w.virtio.PowerOff(t.Context()))
}

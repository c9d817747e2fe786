// Package kernelnic is for guests that leave networking to Linux: it brings up a NIC of vnic's
// under the kernel's own driver and provides GPU memory, which device memory TCP needs.
//
// GPU memory is the memory of a NUMA node without CPUs: a Window is a memfd whose pages come from
// that node, and nothing else of this process does. Or it is the BAR of a PCI device with the
// driver vnicgpu (guest-images/vnicgpu), which allocates the Window. The NIC reports where the
// window is in the GPU's memory, over its control channel, here a packet socket. The kernel
// accesses the window by dma-bufs (Window.DMABuf), the GPU's engines by offsets in the GPU's memory
// (Engine), and the NIC by the ranges that are registered with it.
//
// The package is for guests that run nothing else: it changes the machine's huge pages and network
// settings and, except for what Close undoes, does not restore them. It depends on the name of the
// driver, gve, and on package devmem/kernel for device memory sockets.
package kernelnic

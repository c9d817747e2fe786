// Package kernelnic is a guest that leaves networking to Linux: it brings a NIC of ours up under
// the kernel's own driver and gives device memory TCP what it needs besides, memory of a GPU.
//
// GPU memory is the memory of a NUMA node without CPUs: a Window is a memfd whose pages, and
// nothing else of this process, come from there. Or it is the BAR of a PCI device whose driver is
// vnicgpu (guest-images/vnicgpu), which has allocated the Window. Where it lies in the GPU's memory
// the NIC says, over its control channel: a packet socket here. The kernel reaches the window by dma-bufs
// (Window.Export), the GPU's engines by offsets in the GPU's memory (Engine), the NIC by what it is
// told to register.
//
// The package is for guests that run nothing else: it changes the machine's huge pages and network
// settings and, but for what Close says, leaves them so. Of the driver, gve, it knows the name, and
// of device memory sockets package devmem/kernel.
package kernelnic

// Package kernelnic is for a guest that leaves networking to Linux: it sets up a vnic NIC under the
// kernel's own driver, and adds the GPU memory that device memory TCP needs.
//
// GPU memory is either the memory of a NUMA node without CPUs, or the BAR of a PCI device with the
// driver vnicgpu (guest-images/vnicgpu). In the first case a Window is a memfd whose pages come
// from that node; in the second case vnicgpu has allocated the Window. The NIC reports over its
// control channel, here a packet socket, where the window lies in the GPU's memory. The kernel
// accesses the window through dma-bufs (NIC.Export), the GPU's engines by offsets in the GPU's
// memory (Engine), and the NIC through the buffers registered with it.
//
// The package is for guests that run nothing else: it changes the machine's huge pages and network
// settings, and undoes only the changes that Close names. Its only driver is gve. Package devmem/kernel
// implements device memory sockets.
package kernelnic

// Package kernelnic sets up a vnic NIC under the guest kernel's own driver, with the GPU memory that device
// memory TCP needs.
//
// A Window is GPU memory: a memfd with pages of a NUMA node, or memory of a PCI device with the driver
// vnicgpu (guest-images/vnicgpu). The NIC reports over its control channel which guest-physical addresses are
// GPU memory.
//
// The package is for guests that run nothing else: it changes the machine's huge pages and network settings,
// and Close undoes only some of the changes. Without Options.Interface the NIC's driver is gve.
package kernelnic

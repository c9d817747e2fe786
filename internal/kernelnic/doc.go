// Package kernelnic sets up a vnic NIC under the guest kernel's own driver, and on request the GPU memory that device
// memory TCP needs.
//
// A Window is GPU memory: a memfd with pages of a NUMA node, or memory of a PCI device with the driver
// vnicgpu (guest-images/vnicgpu). The NIC reports over its control channel which guest-physical addresses are
// GPU memory.
//
// The package is for guests that run nothing else: it may change the machine's huge pages and network settings, and
// NIC.Close undoes only some of the changes. Without Options.Interface, Open takes the only interface of the driver
// gve.
package kernelnic

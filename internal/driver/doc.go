// Package driver is a user-space virtio-net driver (virtio 1.3, 5.1) with header split into GPU memory.
//
// It drives a PCI device inside a guest (OpenPCI: sysfs, hugetlb pages, uio_pci_generic) or a vhost-user backend from
// a process (Attach: memfd, eventfds, sockets). Both give the same NIC: frames whole in host memory on the host
// queues, frames split on bound queues (headers in host memory, payload in pages of a GPU that the driver never
// maps), and transmission of headers from host memory with payload from a GPU.
//
// What virtio says, the real control queue says (queue pairs); what it does not know (split, steering, bindings)
// goes in-band through package control, whose frames the driver takes out of receive queue 0.
//
// One goroutine polls all queues and calls the Receiver; Transmit is called by anybody, under one lock a queue.
// The device is not trusted: what it returns is checked, and a broken rule stops the NIC with an error (Err).
//
// It does not know packed rings, MSI-X, RSS on the control queue, nor a guest with an IOMMU.
//
// The package is not API (README, Stability).
package driver

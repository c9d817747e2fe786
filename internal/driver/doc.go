// Package driver is a user-space virtio-net driver (virtio 1.3, 5.1) with header split into GPU memory.
//
// It drives a PCI device inside a guest (OpenPCI: sysfs, hugetlb pages, uio_pci_generic) or a
// vhost-user backend from a process (Attach: memfd, eventfds, sockets). Both give the same NIC: on
// host queues the device writes frames to host memory; on bound queues it splits frames, with
// headers in host memory and payload in pages of a GPU that the driver never maps; frames to send
// have headers in host memory and may have payload in a GPU.
//
// Inside a guest the driver sets the number of queue pairs over virtio's control queue; a vhost-user backend
// has none, and the driver enables its queues by messages. Other commands (split, steering, bindings) go
// in-band through package control; the driver takes the frames of that package out of receive queue 0.
//
// One goroutine polls all queues and calls the Receiver. Any goroutine may call Transmit, which takes the
// queue's lock. The device is not trusted: the driver checks what the device returns, and most broken rules
// of virtio stop the NIC with an error (Err).
//
// Not supported: packed rings, MSI-X, RSS on the control queue, and guests with an IOMMU.
//
// The package is not API (README, Stability).
package driver

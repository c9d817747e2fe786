// Package driver is a user-space virtio-net driver (virtio 1.3, 5.1) with header split into GPU memory.
//
// It drives a PCI device inside a guest ([OpenPCI]) or a vhost-user backend from a process ([Attach]). On host queues
// (Options.HostQueues) the device writes whole frames to memory of the driver. On bound queues ([NIC.BindQueue]) it
// writes headers to memory of the driver, and payload to pages of a GPU, which the driver never maps.
//
// If more than one queue pair of a PCI device is in use, the driver enables them by virtio's control queue; it
// enables a backend's queues by messages. Other commands, such as for split, steering and bindings, go in-band
// through package control, whose frames the driver takes out of receive queue 0.
//
// One goroutine polls the queues and calls the [Receiver]. The driver checks what the device returns; most
// broken rules of virtio stop the NIC ([NIC.Err]).
//
// Not supported: packed rings, MSI-X, RSS on the control queue, and guests with an IOMMU.
//
// The package is not API (README, Stability).
package driver

// Package driver is a user-space virtio-net driver (virtio 1.3, 5.1) with header split into GPU memory.
//
// It drives a PCI device inside a guest ([OpenPCI]) or a vhost-user backend from a process ([Attach]). On
// host queues the device writes frames to host memory; on bound queues it splits frames, with payload in
// pages of a GPU, which the driver never maps.
//
// A PCI device's queue pairs are enabled by virtio's control queue, a backend's by messages. Other commands, such as
// for split, steering and bindings, go in-band through package control, whose frames the driver takes out of receive
// queue 0.
//
// One goroutine polls the queues and calls the [Receiver]. The driver checks what the device returns; most
// broken rules of virtio stop the NIC ([NIC.Err]).
//
// Not supported: packed rings, MSI-X, RSS on the control queue, and guests with an IOMMU.
//
// The package is not API (README, Stability).
package driver

// Package gve is a gVNIC-compatible NIC in the DQO-RDA queue format: the device end of Linux's gve driver, as a
// vfiouser.Device.
//
// The control plane is registers (BAR0) and the admin queue: it runs on the goroutine that serves
// the frontend, inside the register write that asks for it. Doorbells (BAR2) tell queues where
// their driver is. Each started transmit queue has one worker, as in internal/nic/virtio; receive queues
// have no goroutine, senders enter them under a lock. Interrupts are MSI-X vectors that fire once
// and are armed again by the driver; what happens meanwhile is latched.
//
// A descriptor or a ring that makes no sense stops its queue, a doorbell of the admin queue that
// makes none stops that; the device then asks its driver for a reset, or waits for one. Reset, by
// the driver, the machine or a frontend that hangs up, ends all DMA before it returns.
//
// What a buffer costs is bounded: one in more than 5 segments, which whole pages cannot make of it,
// is none. Its packet is dropped, or comes back as bad. So a packet to send has at most 64 buffers
// and 320 segments, a received one 17 and 90. How many buffers a received frame needs follows from
// their size, which a ring's are all of: a frame for which there are too few, or never can be enough,
// is refused without reading any of them.
//
// What the driver sets through the admin queue (flow rules, RSS, header split) lands in the same
// control.State of the port that in-band commands change, so there is one truth. Layouts and rules
// are facts of Linux's driver (drivers/net/ethernet/google/gve, cited by file), restated.
//
// It does not know: other queue formats (GQI, queue page lists), XDP's own needs.
package gve

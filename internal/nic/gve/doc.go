// Package gve is a gVNIC-compatible NIC in the DQO-RDA queue format: the device end of Linux's gve driver, as a
// vfiouser.Device.
//
// The control plane is registers (BAR0) and the admin queue: it runs inside register writes. Doorbells (BAR2)
// tell queues how far their driver has posted. Each started transmit queue has one worker; senders use receive
// queues under a lock. Interrupts are MSI-X vectors; a queue's vector fires once, until the driver re-arms it.
//
// An invalid transmit descriptor, or a ring whose memory the frontend unmaps, stops its queue, and the device asks for
// a reset; an invalid doorbell of the admin queue, or a slot that cannot be accessed, stops the admin queue until a
// reset or a new start. A reset ends all DMA before it returns.
//
// The cost of a buffer is bounded: a buffer in more than 5 segments, which is impossible if segments are whole
// pages, is invalid.
//
// Flow rules, RSS and header split of the admin queue are in the port's control.State; in-band commands change
// flow rules and RSS too. Layouts and rules are taken from Linux's driver (drivers/net/ethernet/google/gve, cited
// by file).
//
// Not implemented: other queue formats (GQI, queue page lists), and special support for XDP.
package gve

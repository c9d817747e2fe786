// Package gve is a gVNIC-compatible NIC in the DQO-RDA queue format: the device end of Linux's gve driver, as a
// vfiouser.Device.
//
// The control plane is registers (BAR0) and the admin queue; the device carries out the driver's commands inside the
// register write that rings the admin queue's doorbell. Doorbells in BAR2 tell queues how far the driver has posted,
// and arm interrupt vectors. Each started transmit queue has one worker; senders use a receive queue under its lock.
// Interrupts are MSI-X vectors; after an interrupt, a queue's vector fires no more until the driver re-arms it.
//
// A transmit descriptor of an unknown type or in a wrong place, a packet of too many buffers, or a ring whose memory
// the frontend unmaps, stops the queue, and the device asks for a reset. A buffer that is not mapped, or a TSO
// descriptor that does not fit its packet, costs only the frame. An invalid length or doorbell of the admin queue, or
// a slot that cannot be accessed, stops the admin queue until the driver starts it again. A reset ends all DMA before
// it returns.
//
// The cost of a buffer is bounded: a buffer in more than 5 segments, which is impossible if segments are whole
// pages, cannot be used.
//
// Flow rules, RSS and header split of the admin queue are in the port's control.State; commands of the control
// channel (package control) change flow rules and RSS, too. Layouts and rules are taken from Linux's driver
// (drivers/net/ethernet/google/gve, cited by file).
//
// Not implemented: other queue formats (GQI, queue page lists), and special support for XDP.
package gve

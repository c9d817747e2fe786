// Package gve is a gVNIC-compatible NIC in the DQO-RDA queue format: the device end of Linux's gve driver, as a
// vfiouser.Device.
//
// The control plane is registers (BAR0) and the admin queue: it runs inside the register write that asks for it.
// Doorbells (BAR2) tell queues how far their driver has posted. Each started transmit queue has one worker;
// receive queues have no goroutine, senders use them under a lock. Interrupts are MSI-X vectors that fire once,
// until the driver re-arms them; the device latches an interrupt that is due meanwhile.
//
// An invalid descriptor, or a ring whose memory the frontend unmaps, stops its queue; an invalid doorbell of the
// admin queue stops the admin queue. When a queue has stopped, the device asks its driver for a reset; when the
// admin queue has stopped, the device waits for a reset. A reset ends all DMA before it returns.
//
// The cost of a buffer is bounded: a buffer in more than 5 segments, which is impossible if segments are whole
// pages, is invalid. So a packet to send has at most 64 buffers and 320 segments, a received one 17 and 90. The
// number of buffers that a received frame needs follows from their size, which is the same in the whole ring.
//
// The device keeps state that the driver sets through the admin queue (flow rules, RSS, header split) in the
// port's control.State, which in-band commands change too. Layouts and rules are taken from Linux's driver
// (drivers/net/ethernet/google/gve, cited by file).
//
// Not implemented: other queue formats (GQI, queue page lists), and special support for XDP.
package gve

// Package nic is what every NIC of vnic is, whatever a guest sees of it: a port of the wire with receive queues that are
// chosen by flow rules and RSS, header split decided by one policy, meters and counters by memory domain, the path to the
// GPUs (peer to peer or bounced), and the control channel of frames to its own control MAC.
//
// A personality (nic/virtio, nic/gve) brings a transport, a ring format and a control plane of its own. It gives a Port
// one RxQueue for each receive queue, and has one Transmitter for each transmit queue's goroutine; it turns descriptors
// into wire.Packets by way of Describe.
//
// The sender's goroutine does all the work of a packet: Transmitter.Send counts it and hands it to the link, and the
// receiving Port's Deliver steers it and has it copied, once, by the receiving queue under that queue's lock. At most one
// such lock is held at a time; under it nothing is delivered, called, logged or waited for.
//
// State set by commands is one control.State; it dies with device reset (Reset).
//
// The package and those below it are not API (README, Stability).
package nic

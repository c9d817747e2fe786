// Package control carries a driver's commands to its NIC in Ethernet frames, and the NIC's answers
// back.
//
// QEMU handles virtio-net's control queue itself, and the gve device has no queue for such commands. So
// the driver sends commands (header split, flow rules, RSS, GPUs, buffers, bindings, flow counters,
// jobs, RDMA) as frames of EtherType 0x88B5 to the NIC's control MAC on any transmit queue, and the
// NIC answers on receive queue 0. docs/specs/control.md describes the bytes. The commands are one
// table (commands.go), which both ends use: number, types of request and reply, handler.
//
// Client is the driver's end: it numbers requests, repeats requests without an answer, and turns
// the errno of an answer into an error. Dispatcher is the NIC's end: it decodes requests, calls a
// Handler, and stores the last replies of the last sessions, with which it answers repeats. State is
// the result of most commands on a port, with the rules that commands must obey;
// device reset clears it, and the end of a session does not.
//
// The package depends on no transport, queue or device model: its input and output are frames.
//
// The package is not API (README, Stability).
package control

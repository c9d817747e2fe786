// Package control carries a driver's commands to its NIC inside Ethernet frames, and the answers
// back.
//
// QEMU keeps virtio-net's control queue to itself and a gve guest has no device of ours, so commands
// (header split, flow rules, RSS, GPUs, buffers, bindings, flow counters, jobs, RDMA) travel as frames of
// EtherType 0x88B5 to the NIC's control MAC on any transmit queue and are answered on receive queue
// 0. The bytes are in docs/specs/control.md; the commands are one table (commands.go), which both
// ends use: number, types of request and reply, handler.
//
// Client is the driver's end: it numbers requests, repeats what got no answer and turns the errno
// of an answer into an error. Dispatcher is the NIC's end: it decodes, calls a Handler once for
// each request however often its frame came, and keeps the last replies for repeats. State is what
// the commands set up on a port, with the rules that each must obey; it dies with device reset, not
// with a session.
//
// The package knows no transport, no queue and no device model: it takes frames and returns
// frames.
//
// The package is not API (README, Stability).
package control

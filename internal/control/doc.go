// Package control carries a driver's commands to its NIC in Ethernet frames, and the NIC's answers back.
//
// QEMU handles virtio-net's control queue itself, and the gve device has no queue for such commands. So the
// driver sends commands as frames of EtherType 0x88B5 to the NIC's control MAC on any transmit queue, and the
// NIC answers on receive queue 0. docs/specs/control.md describes the bytes. Both ends use one table of
// commands (commands.go).
//
// [Client] is the driver's end. It repeats requests without an answer. [Dispatcher] is the NIC's end. It
// calls a [Handler], and answers repeats with stored replies. [State] is the result of most commands on a
// port; device reset clears it.
//
// The package depends on no transport, queue or device model: its input and output are frames.
//
// The package is not API (README, Stability).
package control

// Package control carries a driver's commands to its NIC in Ethernet frames, and the NIC's answers back.
//
// QEMU handles virtio-net's control queue itself, and the gve device has no queue for such commands. So the
// driver sends commands as frames of EtherType 0x88B5 to the NIC's control MAC on any transmit queue, and the
// NIC answers on receive queue 0. docs/specs/control.md describes the bytes.
//
// [Client] is the driver's end, [Dispatcher] the NIC's end, which calls a [Handler]. [State] is the result of
// most commands on a port; device reset clears it.
//
// The package depends on no transport, queue or device model: its input and output are frames.
//
// The package is not API (README, Stability).
package control

// Package uplink implements ports of the switch that lead out of this process: to other machines, to the
// kernel's bridges, to other emulators.
//
//   - VXLAN (RFC 7348), over UDP sockets of the process: it needs no privilege, and the peer may
//     be another vnic process or a kernel's VXLAN device;
//   - tap: an existing tap device of the kernel, opened by name, with a virtio_net_hdr of 12 bytes.
//     The kernel leaves checksums and TCP segmentation to the uplink (TUN_F_CSUM, TSO4, TSO6,
//     TSO_ECN), because the wire does both;
//   - stream: frames, each behind its length as in QEMU's -netdev stream, over a Unix or TCP
//     socket.
//
// Packets in outgoing frames are at most MTU bytes long, with complete checksums. The uplink verifies TCP and
// UDP checksums of incoming frames unless a tap's kernel has: a driver that receives to GPU memory cannot.
//
// Incoming frames may have any source MAC except MACs of this switch's ports (wire.Switch.Owner). 8 frames in
// 10 seconds from a NIC's own MAC, as in a loop, close the uplink. There is no spanning tree; Options.Storm
// limits the broadcasts and multicasts of other machines. The IP addresses of machines behind an uplink are
// not checked. A VXLAN peer is identified by its IP address alone, because its port is a hash of the flow
// (RFC 7348, 5). A listening TCP socket accepts whoever connects first. An inner VLAN tag is kept, which RFC
// 7348, 6.1, leaves to configuration.
//
// The switch's workers never wait for a socket. Outgoing frames are copied into one of at most 512 buffers,
// and one goroutine sends them. If n ports have frames in buffers, each of them may use one part in n+1 of
// the buffers. A sender without a buffer is Busy, but while the socket takes nothing, the uplink drops the
// frame instead.
//
// One goroutine reads the socket, and waits for a free buffer. A nic.Sender passes the frames on to the
// switch, and holds frames for receivers without buffers for a limited time.
//
// Input is hostile. The uplink copies and sums the bytes of a frame at most once; it counts each drop, and logs at
// most one line a second for each reason.
//
// The MTU is checked once, at the start: for VXLAN, that of the route to the peer minus the outer headers, as
// the outer packet must not be fragmented (RFC 7348, 4.3); for a tap the device's.
//
// Not implemented: multicast groups of VXLAN, and more than one peer; VXLAN-GPE and other extensions, whose
// flags are ignored (RFC 7348, 5); connecting a stream again; a route's MTU that changes later.
//
// The package is not API (README, Stability).
package uplink

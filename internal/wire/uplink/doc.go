// Package uplink implements ports of the switch that lead out of this process: to other machines,
// to the kernel's bridges, to other emulators. An uplink is a trunk: behind it is any number of
// machines, whose addresses the switch learns.
//
//   - VXLAN (RFC 7348), over UDP sockets of the process: it needs no privilege, and the peer may
//     be another vnic process or a kernel's VXLAN device;
//   - tap: an existing tap device of the kernel, opened by name, with a virtio_net_hdr of 12 bytes.
//     The kernel leaves checksums and TCP segmentation to the uplink (TUN_F_CSUM, TSO4, TSO6,
//     TSO_ECN), because the wire does both;
//   - stream: frames, each behind its length as in QEMU's -netdev stream, over a Unix or TCP
//     socket.
//
// Packets in outgoing frames are at most MTU bytes long, with complete checksums: the wire segments
// GSO packets and completes checksums for the uplink (Limits). The uplink verifies TCP and UDP
// checksums of incoming frames unless a tap's kernel has, so that NICs can report them as good: a
// driver that receives to GPU memory cannot verify them itself. VXLAN passes consecutive frames of
// one source port and length to the kernel as one datagram that the kernel segments (UDP_SEGMENT);
// the last frame may be shorter. A stream writes up to 64 waiting frames with one system call.
//
// Incoming frames may have any source MAC except MACs of this switch's ports (wire.Switch.Owner). A
// frame from a gateway's MAC, or from one that a guest uses beside its NIC's own (--allow-mac), is
// dropped: two labs may both have a gateway. A frame from a NIC's own MAC has come back through a
// loop, or another machine uses the same MAC. It is dropped and counted, and 8 such frames in 10
// seconds close the uplink. There is no spanning tree: if two uplinks lead to one network, guests'
// broadcasts close at least one of them. Broadcasts and multicasts of other machines circulate in
// such a loop. Options.Storm limits them; frames beyond the limit are counted and logged as storm.
// Frames to a MAC that the switch has not learned circulate without a limit. Frames from an uplink
// may leave by another one. Machines behind an uplink are trusted like neighbors in a network:
// their IP addresses are not checked. A VXLAN peer is identified by its IP address alone, because
// its port is a hash of the flow (RFC 7348, 5), and addresses can be forged. A listening TCP socket
// accepts whoever connects first; a log line says so if it is not on loopback. An inner VLAN tag is
// kept (RFC 7348, 6.1, leaves that to configuration), if the outer packet has room for it.
//
// The switch's workers never wait for a socket. An outgoing frame is copied into one of 512 buffers
// (fewer if frames are long: all together have at most 8 MiB, unless these are fewer than 64
// buffers), and one goroutine sends the filled buffers. If n ports have frames in buffers, each of
// them may use one part in n+1 of the buffers. So a port that sends more than the socket takes
// leaves room for other ports, and for broadcasts, which the switch drops if they find no buffer.
// If a port has used its share, or no buffer is free, its sender is Busy while that goroutine makes
// progress; while the socket takes nothing, the uplink drops the frame instead. A port's share
// shrinks when other ports become active, but the port keeps the buffers that it has. So if many
// ports become active one after another while the socket takes nothing, the last ones may find no
// buffer.
//
// The number of buffers for incoming frames follows the same bounds. One goroutine reads the socket,
// and waits for a free buffer; meanwhile frames wait in the socket, and the kernel drops a VXLAN's
// or a tap's frames for which it has no room. A nic.Sender passes the read frames on to the switch,
// and holds frames for receivers without buffers for a limited time.
//
// Input is hostile. A datagram is dropped that is not from the peer's address, whose VXLAN header
// is too short, has no I flag or another VNI, or whose frame is longer than Options.MTU with link
// header and two VLAN tags. A length beyond QEMU's own bound ends a stream, because the start of the
// next frame is unknown. The cost of a frame is at most a copy and a checksum of its bytes; the cost
// of a drop is a counter, and at most one log line a second for each reason; peers that connect and
// leave cost at most two lines a second.
//
// The MTU is checked once, at the start: for VXLAN, the MTU of the route to the peer minus the
// outer headers, as the outer packet must not be fragmented (RFC 7348, 4.3); for a tap the
// device's. It is an error if a NIC has a greater MTU.
//
// Not implemented: multicast groups of VXLAN, and more than one peer; VXLAN-GPE and other
// extensions, whose flags are ignored (RFC 7348, 5); reconnecting a stream (an uplink that connects
// ends with its stream, one that listens waits for the next peer); a route's MTU that changes later
// (longer packets are dropped and counted).
//
// The package is not API (README, Stability).
package uplink

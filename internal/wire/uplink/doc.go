// Package uplink implements ports of the switch that lead out of this process: to other machines, to the
// kernel's bridges, to other emulators.
//
//   - VXLAN (RFC 7348), over UDP sockets of the process: it needs no privilege, and the peer may
//     be another vnic process or a kernel's VXLAN device;
//   - tap: an existing tap device of the kernel, opened by name, with a virtio_net_hdr of 12 bytes.
//     The kernel may leave checksums and TCP segmentation to the uplink (TUN_F_CSUM, TSO4, TSO6,
//     TSO_ECN), because the wire does both;
//   - stream: frames, each behind its length as in QEMU's -netdev stream, over a Unix or TCP
//     socket.
//
// Packets in outgoing frames are at most Options.MTU bytes long, without partial checksums. The uplink verifies TCP and
// UDP checksums of incoming frames, because a driver that receives to GPU memory cannot, unless a tap's kernel has
// verified them or left them partial. It marks right ones as good; frames with wrong ones pass, too.
//
// Incoming frames may have any source MAC except group addresses, wire.ControlMAC and MACs that other ports of this
// switch own (wire.Switch.Owner); a MAC that the switch last saw behind the uplink passes without this check. 8 frames
// within 10 seconds from NICs' own MACs, as in a loop, close the uplink. There is no spanning tree; Options.Storm, if
// set, limits the broadcasts and multicasts that come in. The IP addresses of machines behind an uplink are not
// checked. A VXLAN peer is identified by its IP address alone, because its port is a hash of the flow (RFC 7348, 5). A
// listening TCP socket accepts whoever connects, one peer at a time. The uplink keeps an inner VLAN tag, which RFC
// 7348, 6.1, allows if it is configured so.
//
// The switch's workers never wait for a socket. Each outgoing frame is copied into one of at most 512 buffers,
// and one goroutine sends them. If n ports have frames in buffers, each of them may use one part in n+1 of
// the buffers. A frame that gets no buffer is Busy, but while the socket takes nothing, the uplink drops it instead.
//
// One goroutine reads the socket, and waits while no buffer is free. A nic.Sender passes the frames on to the
// switch, and holds frames for receivers without buffers for a limited time.
//
// Input is hostile. Each reason to drop an incoming frame has a counter (Stats, or wire.Link.Counters), and causes at
// most one log line a second.
//
// New fails if Options.MTU is greater than the MTU of the route to a VXLAN peer minus the headers that VXLAN adds, as
// the outer packet must not be fragmented (RFC 7348, 4.3), or than a tap device's MTU. Nothing checks this later. A
// stream has no MTU.
//
// Not implemented: multicast groups of VXLAN, and more than one peer; VXLAN-GPE and other extensions, whose
// flags are ignored (RFC 7348, 5); connecting a stream again; a route's MTU that changes later.
//
// The package is not API (README, Stability).
package uplink

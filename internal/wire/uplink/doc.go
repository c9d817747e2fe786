// Package uplink has ports of the switch that lead out of this process: to other machines, to the
// kernel's bridges, to other emulators. An uplink is a trunk: behind it is any number of machines,
// of which the switch learns.
//
//   - VXLAN (RFC 7348), over UDP sockets of the process: no privilege is needed, and the peer may
//     be a vnic or a kernel;
//   - tap: a tap device of the kernel that is there already, opened by name, with virtio_net_hdr
//     of 12 bytes. Checksums and TCP segmentation are left to us by the kernel (TUN_F_CSUM, TSO4,
//     TSO6, TSO_ECN), as the wire does both;
//   - stream: frames behind their length as QEMU's -netdev stream has them, over a Unix or TCP
//     socket.
//
// What goes out are frames of at most the MTU, with complete checksums: the wire cuts and completes
// (Limits). What comes in has its checksums verified, so that NICs can say that they are good: who
// receives to GPU memory cannot know it otherwise. Full frames of one flow go to the kernel as one
// datagram that it cuts (UDP_SEGMENT) where VXLAN is the framing, and all that waits as one write
// where it is a stream.
//
// Any source MAC may come in, but those that are ours (wire.Switch.Owner). A frame from a gateway's
// MAC, or from one that a guest uses beside its NIC's own (--allow-mac), is dropped: two labs may
// both have a gateway. One from a NIC's own MAC can only have come back, or somebody else has the
// same MAC, or made it up: it is dropped and counted, and at 8 in 10 seconds the uplink is closed,
// with one line that says so. There is no spanning tree: the broadcasts of guests close two uplinks
// that lead to one network. What circulates there of others' broadcasts and multicasts is bounded
// by Options.Storm, and counted and logged as storm; frames to one machine that no port has sent
// from circulate without a bound. Frames that come from an uplink may leave by another. Who is
// behind an uplink is trusted as a network's neighbors are: IP addresses are not judged. A VXLAN
// peer is known by its IP address alone, as its port is a hash of the flow (RFC 7348, 5), and
// addresses can be made up; a TCP socket that listens takes whoever comes first, and a line of the
// log says so where it is not on loopback. An inner VLAN tag stays (RFC 7348, 6.1, leaves that to
// configuration), where the outer packet has room for it.
//
// Nothing waits. A frame that goes out is copied into one of 512 buffers (fewer where frames are
// long: 8 MiB at most, and 64), which one goroutine empties. Of n ports with frames there each has
// one buffer in n+1 at the most, so that one that sends more than the socket takes leaves room for
// others, and for their frames to all, which do not wait. Where a port has no free buffer, its
// sender is Busy while that goroutine makes progress, and the frame is dropped while the socket
// takes nothing. Parts that were given when fewer ports had frames shrink as frames leave, so of
// many ports that come one after the other while the socket takes nothing the last may find none.
// What comes in has as many buffers; one goroutine reads, and waits for a free one, so that what is
// too much waits in the socket, and is lost there. A nic.Sender takes it from there to the switch,
// with patience for busy receivers.
//
// Input is hostile. Of a datagram that is not from the peer's address, whose VXLAN header is short,
// has no I flag, or another VNI, or whose frame is longer than the longest of the switch's ports,
// no byte goes further; of a stream, a length beyond QEMU's own bound ends the connection, as
// nobody can tell where the next frame begins. Each frame costs a copy of its bytes at most; each
// drop a counter, and a line in the log a second and reason; peers that come and go as often, two.
//
// The MTU is looked at once, at the start: of VXLAN, that of the route to the peer less the outer
// headers, which may not be fragmented (RFC 7348, 4.3); of a tap its device's. NICs with a greater
// one are an error.
//
// It does not know: multicast groups of VXLAN, and more than one peer; VXLAN-GPE and other
// extensions, whose flags it ignores (RFC 7348, 5); connecting again where a stream that we
// connected to ends (that is the uplink's end; one that listens waits for the next peer); a MTU of
// the route that changes later (what is too long then is dropped and counted).
//
// The package is not API (README, Stability).
package uplink

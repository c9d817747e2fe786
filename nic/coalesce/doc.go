// Package coalesce decides which frames a receiver may get as one (receive coalescing: RSC, LRO
// in hardware, GRO in Linux), and makes the header of the GSO packet that they become.
//
// A Merge begins with one frame and takes those that continue it. What it becomes gives the same
// frames again, byte for byte, when splitter.Segmenter cuts it, checksums complete; there is no
// frame that comes out changed, twice or not at all. What is merged is what Linux's GRO would
// merge (net/ipv4/tcp_offload.c, tcp_gro_receive; net/ipv4/af_inet.c, inet_gro_receive;
// include/net/gro.h, gro_receive_network_flush; net/ipv6/ip6_offload.c), and no more:
//
//   - TCP with the same link header (addresses and tags), IP addresses and ports;
//   - IPv4 without options, not a fragment, its header checksum good, TOS (with ECN), TTL and DF
//     the same; identifications that rise by one from frame to frame, or, with DF, that stay.
//     Meta.FixedID tells which;
//   - IPv6 with the same traffic class, flow label and hop limit;
//   - the next byte in sequence, in frames with payload, all as long as the first one but the
//     last, which may be shorter and ends the merge;
//   - the same acknowledgment number, window and options, byte for byte. GRO as well ends a merge
//     at a frame that differs in one of them, and begins the next one with it;
//   - PSH ends a merge, which then has it;
//   - a checksum that was verified before, or that the sender's NIC leaves to be completed.
//
// GRO would merge more here, and Merge does not: frames with FIN or ECE (flags are ACK, and PSH
// on the last); with bits of the TCP header that are reserved, or for accurate ECN; an urgent
// pointer that changes, which GRO forgets; IPv6 extension headers; segments below
// splitter.MinGSOSize, which no GSO packet may have; checksums of 0xffff where a segmenter would
// write 0.
//
// A guest is not told that identifications stay: virtio_net_hdr has no bit for it. If it forwards
// the packet, those of the segments rise; with DF they mean nothing (RFC 6864, 4.1).
//
// A Merge has at most MaxFrames frames and 64 KiB. What a frame costs does not depend on how many
// came before it: one comparison of headers, and the sums of two headers. Nothing is allocated,
// and no header makes it panic: it works on private copies of headers that splitter.Parse has
// seen.
package coalesce

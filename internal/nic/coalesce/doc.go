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
//     the same; identifications that rise by one from frame to frame, or that stay. Meta.FixedID
//     tells which;
//   - IPv6 with the same traffic class, flow label and hop limit, and the same extension headers,
//     byte for byte;
//   - together no longer than an IP packet of 65535 bytes, header included, of either version;
//   - the next byte in sequence, in frames with payload, all as long as the first one but the
//     last, which may be shorter and ends the merge;
//   - the same acknowledgment number, window and options, byte for byte. GRO as well ends a merge
//     at a frame that differs in one of them, and begins the next one with it;
//   - CWR on all frames or on none. Meta.AccECN tells;
//   - PSH ends a merge, which then has it;
//   - a checksum that was verified before, or that the sender's NIC leaves to be completed.
//
// GRO would merge more here, and Merge does not: frames with FIN or ECE (flags are ACK, maybe CWR,
// and PSH on the last); with bits of the TCP header that are reserved, or for accurate ECN; an
// urgent pointer that changes, which GRO forgets; frames in tunnels (IP in IP, PPPoE); segments below
// splitter.MinGSOSize, which no GSO packet may have; checksums of 0xffff where a segmenter would
// write 0.
//
// A guest is not told that identifications stay, nor that CWR is on each frame: neither
// virtio_net_hdr nor a completion of gve has a bit for it. If it forwards the packet,
// identifications of the segments rise, which nobody minds, as each is new (with DF they mean
// nothing: RFC 6864, 4.1), and CWR is on the first alone, as of old (RFC 3168, 6.1.2).
//
// A Merge has at most MaxFrames frames and 64 KiB. What a frame costs does not depend on how many
// came before it: one comparison of headers, and the sums of two headers. Nothing is allocated,
// and no header makes it panic: it works on private copies of headers that splitter.Parse has
// seen.
package coalesce

// Package coalesce decides which frames a receiver may get as one (receive coalescing: RSC, LRO in hardware,
// GRO in Linux), and makes the header of that GSO packet.
//
// A Merge begins with one frame and takes frames that continue it. From the merged packet splitter.Segmenter makes
// the same frames, byte for byte except for their TCP checksums, which are partial (Meta.Complete completes them). A
// Merge takes only frames that the GRO of recent Linux would merge (net/ipv4/tcp_offload.c, tcp_gro_receive;
// net/ipv4/af_inet.c, inet_gro_receive; include/net/gro.h, gro_receive_network_flush; net/ipv6/ip6_offload.c):
//
//   - TCP with the same link header, IP addresses and ports;
//   - IPv4 without options, not a fragment, with a good header checksum, and the same TOS, TTL and DF;
//     identifications rise by one, or are equal (Meta.FixedID);
//   - IPv6 with the same traffic class, flow label, hop limit and extension headers;
//   - together at most an IP packet of 65535 bytes, header included;
//   - the next byte in sequence, with payload as long as the first one's; the last one may be shorter, and
//     ends the merge;
//   - the same acknowledgment number, window and options;
//   - CWR on all frames or on none (Meta.AccECN);
//   - PSH ends a merge, and is set in the merged packet;
//   - a checksum that is good, or partial (the caller checks it by Vouched).
//
// The package refuses some frames that GRO would merge, such as frames with FIN or ECE; with TCP bits that are
// reserved or for accurate ECN; with changing urgent pointers; in tunnels (IP in IP, PPPoE); a first frame with less
// payload than splitter.MinGSOSize; and frames with a checksum of 0xffff, where a segmenter would write 0, in the IPv4
// header, or in the TCP header if it is not CsumGood yet.
//
// A guest cannot see that identifications were equal, or that CWR was on each frame. If it forwards the merged packet
// of such frames, the segments have rising identifications, which mean nothing with DF (RFC 6864, 4.1), and CWR is on
// the first segment only, as in classic ECN (RFC 3168, 6.1.2).
//
// A Merge has at most MaxFrames frames. A frame's cost does not depend on the number of frames before it, and
// a Merge allocates nothing.
package coalesce

// Package coalesce decides which frames a receiver may get as one (receive coalescing: RSC, LRO in
// hardware, GRO in Linux), and makes the header of the GSO packet that they become.
//
// A Merge begins with one frame and takes frames that continue it. splitter.Segmenter, applied to
// the merged packet, returns the same frames again, byte for byte, with complete checksums: it
// returns each frame once and unchanged. A Merge takes only frames that Linux's GRO would merge
// (net/ipv4/tcp_offload.c, tcp_gro_receive; net/ipv4/af_inet.c, inet_gro_receive;
// include/net/gro.h, gro_receive_network_flush; net/ipv6/ip6_offload.c):
//
//   - TCP with the same link header (addresses and tags), IP addresses and ports;
//   - IPv4 without options, not a fragment, with a good header checksum, and the same TOS (with
//     ECN), TTL and DF; identifications that rise by one from frame to frame, or that are all equal
//     (Meta.FixedID is set if they are equal);
//   - IPv6 with the same traffic class, flow label and hop limit, and the same extension headers,
//     byte for byte;
//   - together at most an IP packet of 65535 bytes, header included, of either version;
//   - the next byte in sequence, in frames with payload, all as long as the first one except the
//     last, which may be shorter and ends the merge;
//   - the same acknowledgment number, window and options, byte for byte. GRO, too, ends a merge
//     at a frame that differs in one of them, and begins the next merge with it;
//   - CWR on all frames or on none (Meta.AccECN);
//   - PSH ends a merge, and is set in the merged packet;
//   - a checksum that is verified as good, or that is partial (the sender left it to the device).
//
// GRO would merge some frames that a Merge refuses: frames with FIN or ECE (a Merge allows only
// ACK, CWR, and PSH on the last one); frames with TCP header bits that are reserved or for accurate
// ECN; frames whose urgent pointer changes, which GRO loses; frames in tunnels (IP in IP, PPPoE);
// segments below splitter.MinGSOSize, which no GSO packet may have; frames with a checksum of
// 0xffff, where a segmenter would write 0.
//
// A guest cannot see that identifications are equal, or that CWR is on each frame: neither
// virtio_net_hdr nor a completion of gve has a bit for it. If it forwards the packet, the
// identifications of the segments rise, which is harmless because each identification is new (with
// DF they mean nothing: RFC 6864, 4.1), and CWR is on the first segment only, as in classic ECN
// (RFC 3168, 6.1.2).
//
// A Merge has at most MaxFrames frames and 64 KiB. The cost of a frame does not depend on the
// number of frames before it. A Merge allocates nothing, and no header makes it panic: a Merge
// works on private copies of headers that splitter.Parse has checked.
package coalesce

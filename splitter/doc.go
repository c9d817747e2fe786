// Package splitter parses and segments one packet: it finds the end of the headers, the flow, the
// queue for the flow, whether the checksums are right, and the segments of a super-packet.
//
// Parse reads Ethernet II, 802.1Q and 802.1ad tags, IPv4 with options, IPv6 with extension headers,
// TCP with options and UDP. Parse reads only the outer headers: it takes a tunnel for UDP or OtherIP.
// RSS is Microsoft's Toeplitz hash over addresses and ports; Rules are exact-match flow rules with
// any subset of the fields; a Segmenter does what a NIC's TSO and USO do.
//
// Everything here works on private copies of headers. The package uses no guest memory, queue or
// ring; payload appears only as a length and, where a checksum needs it, as a ones' complement sum
// that the caller computed while it copied. Sums are the 16-bit big-endian words added up, folded
// to 16 bits and not inverted.
//
// Nothing here allocates per packet, and no frame causes a panic or a read past the given slice.
//
// The package is API (README, Stability).
package splitter

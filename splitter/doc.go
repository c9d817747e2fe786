// Package splitter understands one packet: where its headers end, which flow it belongs to, which queue that flow
// goes to, whether its checksums hold, and how a super-packet is cut into segments.
//
// Parse reads Ethernet II, 802.1Q and 802.1ad tags, IPv4 with options, IPv6 with extension headers, TCP with options
// and UDP. It looks at the outer headers only: a tunnel is UDP or OtherIP to it. RSS is Microsoft's Toeplitz hash over
// addresses and ports; Rules are exact-match flow rules of which any field may be left open; a Segmenter does what a
// NIC's TSO and USO do.
//
// Everything here works on private copies of headers. The package knows no guest memory, no queue and no ring; payload
// appears only as a length and, where a checksum needs it, as a ones' complement sum that the caller computed while it
// copied. Sums are folded to 16 bits, not inverted, and in network order: the 16-bit big-endian words added up.
//
// Nothing here allocates per packet, and no input makes it panic or read past the slice it was given.
//
// The package is API (README, Stability).
package splitter

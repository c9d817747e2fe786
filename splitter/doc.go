// Package splitter parses and segments packets: it finds the end of the headers, the flow and its queue,
// verifies checksums, and cuts super-packets into segments.
//
// Parse reads Ethernet II, 802.1Q and 802.1ad tags, IPv4 with options, IPv6 with extension headers, TCP with
// options, UDP, the ports of SCTP, and the SPI of ESP and AH. RSS is Microsoft's Toeplitz hash over addresses and
// ports; Rules are exact-match flow rules; a Segmenter does what a NIC's TSO and USO do.
//
// Callers pass private copies of headers. Payload appears only as a length and, where a checksum needs it, as a
// ones' complement sum: the 16-bit big-endian words added up, folded to 16 bits and not inverted.
//
// No frame causes a panic or a read past the given slice, if the slice is as long as the function requires.
//
// The package is API (README, Stability).
package splitter

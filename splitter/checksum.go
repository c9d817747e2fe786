package splitter

// Sum is the ones' complement sum of b, folded, not inverted, in network order, with initial added.
func Sum(b []byte, initial uint16) uint16 { return 0 }

// Add adds two folded sums.
func Add(a, b uint16) uint16 { return 0 }

// SumAt makes a sum over bytes that start at an odd offset of the whole fit to be added: it swaps its bytes if odd.
func SumAt(sum uint16, off uint32) uint16 { return 0 }

// PseudoSum is the sum of the pseudo-header (RFC 9293, 3.1; RFC 8200, 8.1) of a TCP or UDP frame, for a layer 4 length
// (its header and payload) of l4len. hdr is the frame's header.
func PseudoSum(h *Headers, hdr []byte, l4len uint32) uint16 { return 0 }

// FixIPv4 writes the IPv4 header checksum; it does nothing to frames that are not IPv4.
func FixIPv4(h *Headers, hdr []byte) {}

// VerifyIPv4 says whether the IPv4 header checksum holds; true for frames that are not IPv4.
func VerifyIPv4(h *Headers, hdr []byte) bool { return false }

// FixL4 writes the full layer 4 checksum of a TCP or UDP frame whose payload of payloadLen bytes adds up to payloadSum.
func FixL4(h *Headers, hdr []byte, payloadLen uint32, payloadSum uint16) {}

// FixPartial writes the pseudo-header's sum into the checksum field of a TCP or UDP frame, as CsumPartial wants it.
func FixPartial(h *Headers, hdr []byte, payloadLen uint32) {}

// VerifyL4 checks the layer 4 checksum of a TCP or UDP frame: CsumGood, CsumBad, or CsumNone if there is nothing to
// check (another class; UDP without a checksum over IPv4).
func VerifyL4(h *Headers, hdr []byte, payloadLen uint32, payloadSum uint16) Csum { return CsumNone }

// CsumPlace gives the start and offset that CsumPartial must have for a frame of this class; ok for TCP and UDP only.
func CsumPlace(h *Headers) (start, offset uint16, ok bool) { return 0, 0, false }

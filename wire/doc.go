// Package wire is how ports reach each other: a learning switch, the links into it, and what a bad link does to
// packets.
//
// A sending port hands a batch of Packets to its Link. The wire finds the receiving port of each, cuts GSO packets to
// what that port takes, completes checksums that it does not, and calls its Deliver with as long a run of the batch as
// goes there. The receiving port copies the bytes; the wire itself copies payload only into the delay line of a link
// that reorders. Each packet comes back with a Verdict. Nothing here waits, but Detach and Close.
//
// Order within a flow is kept, unless an Impairment is told to break it: once one packet of a batch
// met a busy port, the rest of that batch to the port is busy too.
//
// What is judged of a frame is what leaves, byte for byte. A sender may leave a checksum to be
// completed (CsumPartial), and says where it lies; the wire refuses it (DropBadCsum) unless that
// changes no byte that decides what becomes of the frame. splitter.Meta.CsumAllowed is
// that rule, for GSO packets too: of TCP and UDP, start and field are where Parse has them; of
// other IP protocols and of what is not IP, both lie behind splitter.Headers.JudgedLen, and the
// field in the frame, at most splitter.MaxHeader bytes behind Packet.Header; fragments and
// malformed frames have none. A checksum of TCP or UDP is completed last, if the receiver does not
// take it partial. Any other is completed in a copy as the packet is admitted, which is then parsed
// again, before it is learned from, switched or seen by a receiver. That costs its sender one read
// of the frame, and again each time it retries after Busy.
//
// Packets are valid only during Deliver. The wire looks at the link header, and at no more than
// what splitter parsed; it knows no rings, no guest and no GPU. It is in the sender's goroutine and
// uses the sender's Worker throughout, so the sender must be inside its own address space's epoch
// (dma.Space.Enter) and started by dma.Go.
//
// The package and those below it are not API (README, Stability).
package wire

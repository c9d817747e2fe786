// Package wire is how ports reach each other: a learning switch, the links into it, and what a bad link does to
// packets.
//
// A sending port hands a batch of Packets to its Link. The wire finds the receiving port of each, cuts super-packets to
// what that port takes, completes checksums that it does not, and calls its Deliver with as long a run of the batch as
// goes there. The receiving port copies the bytes; the wire itself copies payload only into the delay line of a link
// that reorders. Each packet comes back with a Verdict. Nothing here waits, but Detach and Close.
//
// Order within a flow is kept, unless an Impairment is told to break it: once one packet of a batch met a busy port, the
// rest of that batch to the port is busy too.
//
// Packets are valid only during Deliver. The wire looks at the link header, and at no more than what splitter parsed; it
// knows no rings, no guest and no GPU. It is in the sender's goroutine and uses the sender's Worker throughout, so the
// sender must be inside its own address space's epoch (dma.Space.Enter) and started by dma.Go.
package wire

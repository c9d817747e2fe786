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
// A link with an Identity sends only what says of its sender what is true: the MACs that its port may
// have, and IP addresses that no other port has. Judged are the frame's source MAC; the source address
// of IP; sender and probed address of ARP; target, source and link-layer options of neighbor discovery;
// behind up to two tags, all in one namespace whatever the tag. ARP and neighbor discovery are judged
// in a copy, with their checksum complete. Frames of which a receiver might read more than the wire are
// dropped as DropBadFrame: more tags, neighbor discovery in fragments or behind headers that are too
// long, ARP of another kind than IPv4 on Ethernet. Not judged are payload of any kind (tunnels, DHCP:
// that is the gateway's), other EtherTypes beyond their source MAC, and router advertisements beyond
// their sender: a guest may be a router.
//
// A port has at most MaxClaims IP addresses and as many MACs beside what is reserved or its own. An
// address that its port does not use can move after ClaimIdle, counted from when it is first wanted;
// one that was only probed for, after 10 s; at Forget and Detach at once. What this costs: a frame like
// the one before in its batch a comparison; one from addresses that its port has used before a look at
// a list of at most 64 without a lock; ARP, neighbor discovery and malformed frames at most 512 bytes
// copied, each a delivery of its own; a frame from a new address, one that is refused, a probe, and the
// next use of an address that somebody else wants (6 times a minute at most) the switch's one lock, and
// under it at most 65 claims and two lists of 65. Refused frames allocate nothing and are told once a
// TellEvery and reason. The memory of it is about 200 bytes an address.
//
// Frames to group addresses and to unknown ones go to all ports, and wait for none. A link bounds how many of
// the former its port sends a second (LinkOptions.Storm); what is beyond is dropped, and counted as
// DropStorm. Frames to unknown addresses have no bound: to a machine that never sends, as a packet sink, all
// frames are such.
//
// Packets are valid only during Deliver. The wire looks at the link header, and, but for Identity, at
// no more than what splitter parsed; it knows no rings, no guest and no GPU. It is in the sender's goroutine and
// uses the sender's Worker throughout, so the sender must be inside its own address space's epoch
// (dma.Space.Enter) and started by dma.Go.
//
// The package and those below it are not API (README, Stability).
package wire

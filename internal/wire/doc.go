// Package wire connects ports: a learning switch, the links between it and its ports, and the
// impairments of links.
//
// A sending port passes a batch of Packets to its Link. The wire finds the receiving port of each
// packet, segments GSO packets and completes checksums that this port does not accept, and calls
// the port's Deliver once for each run of consecutive packets to it. The receiving port copies the
// bytes; the wire itself copies whole payloads only for a link that reorders, delays or corrupts. Each
// packet comes back with a Verdict. Nothing here waits, except Detach and Close.
//
// Order within a flow is kept, unless an Impairment breaks it: once a packet of a batch has met a
// busy port, all later packets of the batch to that port are busy too.
//
// Checked header fields leave unchanged. A sender may leave a checksum to be completed
// (CsumPartial), with the place of its field; the wire refuses the packet (DropBadCsum) if
// completing it would change a byte that decides what happens to the frame.
// splitter.Meta.CsumAllowed is this rule, for GSO packets too. For TCP and UDP, start and field
// must be where Parse finds them. For other IP protocols, and for frames that are not IP, both must
// lie behind splitter.Headers.JudgedLen, and the field inside the frame, at most splitter.MaxHeader
// bytes behind Packet.Header. Fragments and malformed frames cannot have a partial checksum. The
// checksum of a TCP or UDP frame is completed last, if the receiver does not accept partial ones.
// Any other checksum is completed when the packet is admitted, in a copy, which is parsed again
// before the switch learns from it, switches it, or a receiver sees it. This costs the sender one
// read of the frame, and one more for each retry after Busy.
//
// A link with an Identity checks the source addresses of its port's frames: MACs that the port may
// use, and IP addresses that no other port has. It checks the frame's source MAC; the source
// address of IP packets; sender and probed address of ARP; target, source and link-layer options of
// neighbor discovery; all of them behind up to two tags, in one namespace for all tags. ARP and
// neighbor discovery are checked in a copy, with complete checksum. Frames in which a receiver
// might read more than the wire are dropped as DropBadFrame: more tags, neighbor discovery in
// fragments or behind long headers, ARP for anything but IPv4 on Ethernet. The check does not cover
// payload (tunnels, DHCP, which the gateway checks), other EtherTypes except their source MAC, and
// router advertisements except their sender, because a guest may be a router.
//
// A port has bindings to at most MaxBindings IP addresses, and to as many MACs, beside reserved
// ones and its own. Another port may take over an address whose port has not used it for
// BindingIdle, counted from the time when a port first wanted the address; for 10 s if the
// address's port has only probed for it; at once after Forget or Detach of that port. Costs: a
// frame with the source of the previous frame in its batch costs a comparison. A frame from
// addresses that its port has used before costs a search in a list of at most 64, without a lock.
// ARP, neighbor discovery and malformed frames are copied, at most 512 bytes, and each is a
// delivery of its own. A frame from a new address, a refused frame, a probe, and the next use of an
// address that another port wants (at most 6 times a minute) take the switch's lock, and look at no
// more than 65 bindings and two lists of 65 under it. Refused frames allocate nothing, and are
// reported once in ReportEvery for each reason. An address takes about 200 bytes of memory.
//
// Frames to group addresses and to unknown addresses go to all ports, and wait for none. A link
// limits how many frames to group addresses its port may send a second (LinkOptions.Storm); frames
// beyond it are dropped as DropStorm. Frames to unknown addresses have no limit, because all frames
// to a machine that never sends, such as a packet sink, are frames to an unknown address.
//
// Packets are valid only during Deliver. The wire reads the link header and, except for Identity,
// only what splitter has parsed. It is independent of rings, guests and GPUs. The wire runs in the
// sender's goroutine and uses the sender's Worker, so that goroutine must be started by dma.Go, and be
// inside its address space's epoch (dma.Space.Enter).
//
// This package and the packages below it are not API (README, Stability).
package wire

// Package wire connects ports: a learning switch, the links between it and its ports, and the
// impairments of links.
//
// A sending port passes a batch of Packets to its Link. The wire finds the receiving port of each
// packet, segments GSO packets and completes checksums that this port does not accept, and passes
// consecutive packets to the port's Deliver together, as far as it can. The receiving port copies the
// bytes; the wire itself copies whole payloads only for impaired links. Each packet comes back with
// a Verdict. Nothing here waits, except Detach and Close.
//
// Order within a flow is kept, unless an Impairment breaks it: once a packet of a flow is Busy, all
// later packets of the flow in the batch are Busy too.
//
// A sender may leave a checksum to be completed (CsumPartial), with the place of its field; the
// wire refuses the packet (DropBadCsum) if completing it would change a byte that decides what
// happens to the frame. splitter.Meta.CsumAllowed is this rule, for GSO packets too. For TCP and
// UDP, start and field must be where Parse finds them. For other IP protocols, and for frames that
// are not IP, both must lie behind splitter.Headers.JudgedLen, and the field inside the frame, at
// most splitter.MaxHeader bytes behind Packet.Header. Fragments and malformed frames cannot have a
// partial checksum. The checksum of a TCP or UDP frame without a trailer is completed last, if the
// receiver does not accept partial ones. Any other checksum is completed when the packet is
// admitted, in a copy, which is parsed again before the switch learns from it, switches it, or a
// receiver sees it. This costs the sender one read of the frame, and one more for each retry after
// Busy.
//
// A link with an Identity, other than a Router's, checks the source addresses of its port's frames:
// MACs that the port may use, and IP addresses that no other port has. It checks the frame's source
// MAC; the source address of IP packets; sender and probed address of ARP; target, source and
// link-layer options of neighbor discovery; all of them behind up to two tags, in one namespace for
// all tags. ARP and neighbor discovery are checked in a copy, with complete checksum. Frames in
// which a receiver might read more than the wire are dropped as DropBadFrame, such as more tags,
// neighbor discovery in fragments or behind long headers, ARP for anything but IPv4 on Ethernet.
// The check does not cover payload (tunnels, DHCP, which the gateway checks), other EtherTypes
// except their source MAC, and router advertisements except their sender, because a guest may be a
// router.
//
// A port has bindings to at most MaxBindings IP addresses, and to as many MACs, beside reserved
// ones and its own. Another port may take over an address that is neither reserved nor leased, if
// its port has not used it for BindingIdle, counted from the time when a port first wanted the
// address; for 10 s if the address's port has only probed for it; at once after Forget or Detach of
// that port. Costs: a TCP or UDP frame with the source of the previous one in its batch costs a
// comparison. A frame from addresses that its port has used before costs a search in short lists,
// without a lock. ARP, neighbor discovery and malformed frames are each a delivery of their own. A
// frame from a new address, a probe, and the next use of an address that another port wants (at
// most 6 times a minute) take a lock of the switch. Frames that are refused for their addresses are
// reported at most once in ReportEvery for each reason.
//
// Frames to group addresses and to unknown addresses go to all other ports, and wait for none. A link
// may limit how many frames to group addresses its port sends a second (LinkOptions.Storm); frames
// beyond it are dropped as DropStorm. Frames to unknown addresses have no limit, because all frames
// to a machine that never sends, such as a packet sink, are frames to an unknown address.
//
// Packets are valid only during Deliver. The wire decides by the link header and, except for
// Identity, only by what splitter has parsed. It is independent of rings, guests and GPUs. Except for
// delay lines, the wire runs in the sender's goroutine and uses the sender's Worker. A goroutine that
// sends packets in guests' memory must be started by dma.Go, and be inside the epoch of the memory's
// address space (dma.Space.Enter).
//
// This package and the packages below it are not API (README, Stability).
package wire

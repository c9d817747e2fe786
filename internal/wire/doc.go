// Package wire connects ports: a learning switch, the links between it and its ports, and the
// impairments of links.
//
// A sending port passes a batch of Packets to its Link. The wire finds the receiving port of each packet,
// segments GSO packets and completes checksums that this port does not accept, and calls the port's Deliver.
// The receiving port copies the bytes. Each packet comes back with a Verdict. Deliver never waits.
//
// Order within a flow is kept, unless an Impairment breaks it: once a packet of a flow is Busy, the later
// packets of the flow in the batch are Busy too.
//
// A sender may leave a checksum to be completed (CsumPartial), with the place of its field; the wire refuses
// the packet (DropBadCsum) if completing it would change a byte that decides what happens to the frame
// (splitter.Meta.CsumAllowed). The checksum of a TCP or UDP frame without a trailer is completed last, if the
// receiver does not accept partial ones. Any other checksum is completed in a copy, which is parsed again,
// before the switch sees the frame.
//
// A link with an Identity, other than a Router's, checks the source addresses of its port's frames: MACs that
// the port may use, and IP addresses that no other port has. It checks the frame's source MAC; the source
// address of IP packets; the sender and a probed address of ARP; target, source and link-layer options of
// neighbor discovery. ARP and neighbor discovery are checked in a copy. Frames in which a receiver might read
// more than the wire, such as those with more than two tags, are dropped as DropBadFrame. The check does not
// cover payload (tunnels, DHCP), and of router advertisements only the sender, because a guest may be a
// router.
//
// A port has bindings to at most MaxBindings IP addresses, and to as many MACs, beside reserved ones and its
// own. Another port may take over an address that is neither reserved nor leased, if it was not used for
// BindingIdle after another port wanted it. A frame with the source of the previous TCP or UDP frame in its
// batch costs a comparison, a frame from addresses that its port has used before a search in short lists,
// without a lock. A frame from a new address takes a lock of the switch.
//
// Frames to group addresses and to unknown addresses go to all other ports, and wait for none. A link may
// limit how many frames to group addresses its port sends (LinkOptions.Storm). Frames to unknown addresses
// have no limit: a machine that never sends stays unknown.
//
// Packets are valid only during Deliver. Except for delay lines, the wire runs in the sender's goroutine and
// uses the sender's Worker. A goroutine that sends packets in guests' memory must be started by dma.Go, and
// be inside the epoch of the memory's address space (dma.Space.Enter).
//
// This package and the packages below it are not API (README, Stability).
package wire

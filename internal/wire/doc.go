// Package wire connects ports: a learning switch, the links between it and its ports, and the
// impairments of links.
//
// A sending port passes a batch of Packets to its Link. The wire finds the receiving port of each packet,
// segments GSO packets and completes checksums that this port does not accept, and calls the port's Deliver.
// Each packet comes back with a Verdict. Deliver never waits.
//
// Order within a flow is kept, unless an Impairment breaks it: once a packet of a flow is Busy, the later
// packets of the flow in the batch are Busy too.
//
// A sender may leave a checksum to be completed (CsumPartial); the wire refuses the packet (DropBadCsum) if
// completing it would change a byte that decides what happens to the frame (splitter.Meta.CsumAllowed). The
// checksum of a TCP or UDP frame without a trailer is completed last, if the receiver does not accept partial
// ones; any other checksum before the switch sees the frame, in a copy.
//
// A link with an Identity, other than a Router's, checks the source addresses of its port's frames: the
// source MAC, the source of IP packets, the sender and a probed address of ARP, and target, source and
// link-layer options of neighbor discovery. Frames in which a receiver might read more than the wire, such as
// those with more than two tags, are dropped as DropBadFrame. The check does not cover payload (tunnels,
// DHCP). Of router advertisements it covers only the sender's addresses.
//
// A port has bindings to at most MaxBindings IP addresses, and to as many MACs, beside reserved ones and its
// own. Another port may take over an address that is neither reserved nor leased, once its binding is idle
// (BindingIdle, probeIdle). A frame from allowed addresses takes no lock; one from a new
// address, or a probe, takes a lock of the switch.
//
// Frames to group addresses and to unknown addresses go to all other ports, and wait for none. A link may
// limit how many frames to group addresses its port sends (LinkOptions.Storm).
//
// Packets are valid only during Deliver. Except for delay lines, the wire runs in the sender's goroutine and
// uses the sender's Worker. A goroutine that sends packets in guests' memory must be inside the epoch of the
// memory's address space (dma.Space.Enter).
//
// This package and the packages below it are not API (README, Stability).
package wire

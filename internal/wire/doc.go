// Package wire connects ports: a learning switch, the links between it and its ports, and the
// impairments of links.
//
// A sending port passes a batch of Packets to its Link (Link.Deliver). The wire finds the receiving port of each
// packet, segments GSO packets and completes checksums that this port does not accept, and calls Port.Deliver of the
// receiving port. Each packet comes back with a Verdict. Neither Deliver waits.
//
// Order within a flow is kept, unless an Impairment breaks it: once a packet of a flow is Busy, no later packet of the
// flow in the batch is Taken.
//
// A sender may leave a checksum to be completed (CsumPartial). The wire refuses the packet (DropBadCsum) if completing
// it could change a byte that decides what happens to the frame (splitter.Meta.CsumAllowed), or if the checksum's field
// lies too deep in the payload (reachable). The checksum of a TCP or UDP frame without a trailer is completed last, and
// only if the receiver does not accept partial ones or Impairment.Corrupt changes the frame. Any other checksum is
// completed before the switch looks for the receiver, in a copy of the frame.
//
// A link with an Identity, other than a Router's, checks the source addresses of its port's frames: the source MAC, the
// source of IP packets, the sender and a probed address of ARP, and in neighbor discovery the target of a probe, an
// advertisement or a redirect, and the link-layer options. Frames in which a receiver might find other addresses than
// the wire, such as those with more than two tags, are dropped as DropBadFrame. The check does not cover payload
// (tunnels, DHCP). Of router advertisements it covers only the sender's addresses.
//
// A port has bindings to at most MaxBindings IP addresses, and to as many MACs, beside reserved ones and its own.
// Another port may take over an address whose binding is idle. The binding of a reserved address, of a port's own MAC,
// or during a lease is never idle; another one is idle after its lease has ended, or if its port has not used the
// address for some time (BindingIdle, probeIdle). The check of a frame takes a lock of the switch if an address is new,
// is probed for, or has to be shown to be in use still; otherwise it takes none.
//
// Frames to group addresses and to unknown addresses go to all other ports, and wait for none of them. A link may limit
// how many frames to group addresses its port sends a second (LinkOptions.Storm).
//
// A receiver may use Packets only during its Deliver. Except for delay lines, the wire runs in the sender's goroutine
// and uses the sender's Worker. A goroutine that sends packets in guests' memory must be inside the epoch of the
// memory's address space (dma.Space.Enter).
//
// This package and the packages below it are not API (README, Stability).
package wire

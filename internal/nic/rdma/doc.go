// Package rdma implements RoCEv2 in a NIC: reliably connected queue pairs whose packets go between the wire and
// memory of guests and GPUs without their processors, after the InfiniBand Architecture Specification (Volume 1,
// chapters 9 to 11, and annex A17 for RoCEv2). It supports WRITE, WRITE with immediate data, READ, SEND and SEND
// with immediate data.
//
// The port passes packets from the wire to Receive, on the goroutine that delivers them. A worker takes the packets to
// send one by one (Next). Receive and Next do not wait. Commands set everything up (control.RDMA).
//
// # Loss
//
// The responder asks for a missing packet by a NAK, or the requester finds the loss of a packet or of its answer by a
// timeout or a later answer. The requester then sends its requests again, from the first packet without an answer on
// (go-back-N, 9.7.2). A queue pair sends no request while Window or more packets have no answer; the packets of a
// READ's answer count as such packets.
//
// # Memory regions
//
// For each packet that moves payload, the Engine checks the protection domain, range and access of its key. At the
// first packet of a WRITE, and at the request of a READ, it checks the whole range that the packet names. If a
// new packet of a request fails the check at the responder, it writes nothing, and both queue pairs go into the error
// state. If the requester's own memory fails it, only the requester's queue pair does. 22 bits of a key are random, so
// that a peer cannot guess other keys.
//
// # Bounds
//
// A posted work request reserves its slot in the completion queue, so the queue never overflows. In the steady
// state a packet causes no allocation, except one that waits for a page (parkedBytes).
package rdma

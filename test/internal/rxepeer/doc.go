// Package rxepeer is Linux's own RDMA as the other end of a test: a guest with an ordinary virtio NIC, Debian's generic
// kernel and its rdma_rxe, in which a program (tools/rdma-peer.c) does by libibverbs what a Peer here tells it.
//
// Boot boots such a guest on a port of a lab; whatever else is on the lab's switch, another such guest or an engine of
// ours, can then be RDMA's other end. What a Peer is told goes through the guest's serial port, not over the switch:
// nothing that is done to the links reaches it.
//
// A Peer knows queue pairs and memory regions by numbers that its user chooses, 0 to 63. One goroutine at a time uses
// it. It trusts nothing that it reads from the guest, and each call ends: with an error if the guest does not answer.
package rxepeer

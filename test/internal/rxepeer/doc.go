// Package rxepeer provides Linux's own RDMA as the other end of a test: a guest with an ordinary virtio NIC,
// Debian's generic kernel and its rdma_rxe, in which a program (tools/rdma-peer.c) carries out the commands of
// a Peer by libibverbs. Boot boots such a guest.
//
// Commands of a Peer of Boot do not go over the lab's switch, so faults of the links do not affect them. A Peer
// identifies queue pairs and memory regions by numbers that its user chooses, 0 to 63. One goroutine at a time
// may use a Peer.
package rxepeer

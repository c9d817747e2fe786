// Package rxepeer provides Linux's own RDMA as the other end of a test: a guest with an ordinary
// virtio NIC, Debian's generic kernel and its rdma_rxe, in which a program (tools/rdma-peer.c)
// carries out the commands of a Peer by libibverbs. Boot boots such a guest on a port of a lab. The
// other end of a connection can be anything on the lab's switch: another such guest, or a NIC of
// vnic. Commands of a Peer of Boot go through the channel of the guest's agent, not over the switch,
// so faults of the links do not affect them. A Peer identifies queue pairs and memory regions by
// numbers that its user chooses, 0 to 63. One goroutine at a time may use a Peer. A Peer checks
// everything that it reads from the guest, and each call has a time limit.
package rxepeer

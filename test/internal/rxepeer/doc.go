// Package rxepeer provides Linux's own RDMA as the other end of a test: a guest with an ordinary virtio NIC, in
// which a program (tools/rdma-peer.c) carries out the commands of a Peer by libibverbs.
//
// Commands of a Peer that Boot returned go by the guest's agent, and not over the lab's switch. A Peer identifies
// queue pairs and memory regions by numbers that its user chooses, 0 to 63. One goroutine at a time may use a Peer.
package rxepeer

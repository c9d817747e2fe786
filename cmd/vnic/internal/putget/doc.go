// Package putget is `vnic rdma put` and `vnic rdma get`: the NIC of one guest writes memory of the other's GPU, or
// reads it, over RoCEv2 queue pairs (package rdma, by a transfer.Node), and the other guest does nothing.
//
// The host fills the source from the seed and poisons the destination before each round, and compares every byte after
// it. The NICs count where payload lay at both ends, and what was sent again: a run that moved a byte too many, too few
// or through other memory than it should is an error.
package putget

// Package allreduce is `vnic allreduce`: collective operations on a ring of guests, GPU memory to GPU memory, in the
// columns of nccl-tests, with a proof of each.
//
// Every guest is a rank (package collective, by its transfer.Node). The host fills each GPU's memory with elements
// that follow from the seed, tells all ranks to do the operation, and compares each element of every GPU's memory
// with what a reference says: scalar code, in the order of the ring, which shares none with the engines. What goes
// from rank to rank is counted by both NICs, and must be what the operation passes on, to the byte, all in device
// memory.
package allreduce

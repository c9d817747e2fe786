// Package collective is collective operations of device memory over TCP, written against package devmem alone:
// all-reduce, reduce-scatter, all-gather and broadcast on a ring. What ranks exchange goes from GPU memory to GPU
// memory; sums are the owner of the memory's work (devmem.Memory), so no CPU touches payload.
//
// A [Ring] is one rank's. It has one connection to the next rank, to which it only sends, and one from the rank
// before it, which is steered to a queue with device memory. Ranks speak no protocol: each knows from the operation,
// the count and the number of ranks which bytes come and in which order, so all ranks have to call the same
// operations in the same order with the same counts. The one exception is a head of 16 bytes that each connection
// begins with (see hello), which is looked at in device memory: it says whose connection it is.
//
// n ranks cut a buffer in n chunks: n-1 times each rank sends a chunk and adds the one that it receives to its own
// (reduce-scatter), so that chunk c is added up in the order of ranks c, c+1, ...; then n-1 times it sends the sum that
// it has and takes the next one (all-gather). It sends 2(n-1)/n of the buffer in all, exactly, where n divides the
// count.
//
// Errors name the rank that they are about and the step. After one the Ring is closed, whose connections end: so the
// other ranks learn of it. Neither byte nor acknowledgment from a neighbour for Config.Timeout is an error.
//
// The buffer of the last operation stays bound for transmit until there is one on another buffer, or the Ring is
// closed.
//
// Cost: a chunk of scratch memory, beside the pool; 1024 fragments' descriptions; two goroutines in a
// step, and two for heartbeats.
//
// The package is API (README, Stability).
package collective

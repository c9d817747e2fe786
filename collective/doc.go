// Package collective implements collective operations on device memory over TCP, with package
// devmem alone: all-reduce, reduce-scatter, all-gather and broadcast on a ring. Unless Config.Copy is
// set, payload goes from GPU memory to GPU memory. A devmem.Memory makes the additions, so this
// package touches no payload.
//
// A [Ring] belongs to one rank. If there are other ranks, it has one connection to the next rank, on
// which it sends payload, and one from the rank before it, which, without Config.Copy, is steered to a
// queue with device memory. Payload has no framing: a rank derives from the operation, the type, the
// count and the number of ranks which bytes come in which order, so all ranks must call the same
// operations in the same order with the same types and counts. The one exception is a header of 16
// bytes at the start of each connection (see hello), which says whose connection it is. Without
// Config.Copy the receiver reads it in device memory.
//
// For an all-reduce n ranks cut the elements into n chunks. n-1 times each rank sends a chunk and adds
// the received one to its own, so that chunk c is added in the order of ranks c, c+1, ...; then n-1
// times each rank sends a sum and receives the next one. If n divides the count, a rank sends exactly
// 2(n-1)/n of the elements' bytes in all.
//
// An *Error names the neighbour and the step. After an *Error, and if the operation's context ends
// before the operation, the Ring is closed, and so are its connections: this ends the operation on the
// other ranks too. It is an error if neither a byte nor an acknowledgment comes from a neighbour for
// Config.Timeout during an operation.
//
// The buffer of the last operation stays bound for transmit until an operation uses another buffer,
// or until Close.
//
// Cost: scratch memory for a chunk, and the pool; 1024 fragments' descriptions; two goroutines in a
// step, and two for heartbeats.
//
// The package is API (README, Stability).
package collective

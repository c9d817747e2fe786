// Package collective implements collective operations on device memory over TCP, for any devmem.Device: all-reduce,
// reduce-scatter, all-gather and broadcast on a ring. Payload goes from GPU memory to GPU memory, except with
// Config.Copy and for bytes that arrive in host memory (Stats.Linear); a devmem.Memory adds it up.
//
// A [Ring] belongs to one rank. If there are others, it has a connection to the next rank, for payload, and one
// from the rank before it, which, without Config.Copy, is steered to a queue with device memory. Payload has no
// framing: the ranks must call the same operations in the same order with the same types, counts and roots.
//
// For an all-reduce n ranks cut the elements into n chunks. n-1 times each rank sends a chunk and adds the
// received one to its own; then n-1 times it sends a sum and receives the next one. If n divides the count, a
// rank sends 2(n-1)/n of the elements' bytes in all.
//
// An *Error names the neighbour and the step. After it, and if the operation's context ends first, the Ring and
// its connections are closed, which ends the operation on other ranks. A connection without progress for
// Config.Timeout during an operation is an error.
//
// Without Config.Copy the buffer of the last operation stays bound for transmit until an operation uses another
// buffer, or until Close.
//
// The package is API (README, Stability).
package collective

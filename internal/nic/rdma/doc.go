// Package rdma is RoCEv2 in a NIC: reliably connected queue pairs whose packets go between memory of guests, GPUs and
// the wire without anybody's processor, as the InfiniBand Architecture Specification (Volume 1, chapters 9 to 11, and
// annex A17 for RoCEv2) has them. It does WRITE, WRITE with immediate data, READ, SEND and SEND with immediate data.
//
// An Engine is a port's. What comes from the wire is given to Receive, which carries out requests and takes answers on
// the goroutine of the sender; what is to be sent is taken by Gather, packet by packet, on the goroutine of a worker,
// which Config.Wake wakes. Neither waits. The commands that set all of it up are those of package control, whose
// interface control.RDMA an Engine implements.
//
// # Loss
//
// Packets that lack are asked for by a NAK, or missed by a timeout, and sent again with all behind them (go-back-N,
// 9.7.2). At most Window packets of a queue pair wait for an answer, READs' answers included, so that a loss costs no
// more than that, and a packet number's place among 2^24 is never in doubt. A READ is asked for in pieces of a quarter
// of that.
//
// # Memory regions
//
// A key is checked with its protection domain, its range and its access for each packet, by subtraction, so that no
// sum wraps; of a WRITE for all of the message with its first packet. A request that is refused writes nothing: the
// queue pairs on both ends are in error then, and no others. DelMR waits until every worker has left the memory.
// 22 bits of a key are random, so that a peer does not guess the keys of other regions of its protection domain; the
// first queue pair's number is, from which the others count up.
//
// # Bounds
//
// A port holds MaxQPs queue pairs, MaxMRs memory regions of at most MaxRanges ranges in all, MaxCQs completion queues,
// and work requests and completions in MaxPlaces places, 200 bytes each. A posted work request has its place in the
// completion queue, so that queue never overflows: Post is refused instead. A packet costs a look-up, a copy of at most
// 4096 bytes and their CRC, under the lock of its queue pair, which sends 16 packets before another has its turn.
// Nothing is allocated for a packet. What a hostile peer sends is counted, never logged.
//
// The package knows no device model and no rings. It is not API (README, Stability).
package rdma

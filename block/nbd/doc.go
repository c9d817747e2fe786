// Package nbd is a client of the NBD protocol (doc/proto.md of the NetworkBlockDevice/nbd repository, cited as
// proto.md) whose payload lies in device memory: reads land in GPU memory, writes go out from there. It is written
// against package devmem alone, and implements block.Device. It speaks fixed newstyle negotiation, NBD_OPT_GO,
// NBD_CMD_READ, NBD_CMD_WRITE, NBD_CMD_FLUSH and NBD_CMD_DISC, with simple replies.
//
// A [Device] has two connections, or one to an export that is only read:
//
//   - Reads: after the handshake, when nothing is under way, a flow rule steers the connection to a queue whose buffers
//     are device memory. The replies' heads, of 16 bytes, lie there too. While all reads under way have one length the
//     heads lie at a fixed stride, and those that have come are looked at in one call of devmem.Memory; with several
//     lengths it is one head a call. A reply with an error has no data: what was looked at behind it means nothing,
//     and is looked at again.
//   - Writes: heads by Write, payload by SendDevmem. The connection is not steered: its replies are heads alone.
//
// Each of the server's connections may have a cache of its own: without NBD_FLAG_CAN_MULTI_CONN a client should not use
// two (proto.md, Transmission flags), and a read may give what was there before a write, however long the server has
// confirmed it. A Do that wrote ends with NBD_CMD_FLUSH where the server has that; with NBD_FLAG_CAN_MULTI_CONN reads
// see then what was written, without it most servers do all the same. Within a Do, reads and writes of one place are in
// no order. Servers that take one client at a time, as qemu-nbd without --shared does, can only be read from.
//
// Not spoken: TLS (EOPNOTSUPP: a record cannot be decrypted in device memory), oldstyle negotiation and newstyle that
// is not fixed (EOPNOTSUPP), structured replies and extended headers (never negotiated), trim, zeroes, block status.
//
// A server is not trusted. A reply that is none, has a cookie of no operation under way, or comes on the wrong
// connection is block.ErrProtocol, which ends both connections; payload goes nowhere but to the memory of the operation
// that it answers. Cookies hold a count of operations, so that one is never used twice. What a server can cost: a
// handshake of 64 replies of 64 KiB within Config.Timeout, and the Pool. A server that sends a byte now and then makes
// progress, and only the context ends that.
//
// Cost: up to four goroutines while Do runs, some 100 bytes for each operation of Config.Depth, and what devmem.Stream
// and devmem.Sender cost. An operation allocates nothing.
//
// The package is API (README, Stability).
package nbd

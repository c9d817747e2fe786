// Package nbd is a client of the NBD protocol (doc/proto.md of the NetworkBlockDevice/nbd
// repository, cited as proto.md) with payload in device memory: it reads into GPU memory, and
// writes from it. It uses only package devmem, and implements block.Device. It supports fixed
// newstyle negotiation, NBD_OPT_GO, NBD_CMD_READ, NBD_CMD_WRITE, NBD_CMD_FLUSH and NBD_CMD_DISC,
// with simple replies.
//
// A [Device] has two connections, or one for a read-only export:
//
//   - Reads: after the handshake, when no request is outstanding, a flow rule steers the connection to a queue
//     whose buffers are in device memory. The replies' headers, of 16 bytes, are there too. While all reads in
//     progress have the same length, headers are at a fixed distance, and the arrived ones are read in one call
//     of devmem.Memory; with several lengths, one header per call. A reply with an error has no data, so the
//     bytes read ahead behind it are no headers: the Device drops them and reads the next header again.
//   - Writes: the Device sends headers by Write, payload by SendDevmem. It does not steer the connection, whose
//     replies consist only of headers.
//
// Each of the server's connections may have its own cache: without NBD_FLAG_CAN_MULTI_CONN a client
// should not use two connections (proto.md, Transmission flags), because a read may return data from
// before a write that the server has already confirmed. A Do that wrote ends with NBD_CMD_FLUSH if
// the server has it. With NBD_FLAG_CAN_MULTI_CONN later reads see the written data; without it they
// see it on most servers. Within a Do, reads and writes of the same place have no order. Open works
// only with ReadOnly on servers that accept one client at a time, as qemu-nbd without --shared.
//
// Not supported: TLS (EOPNOTSUPP: a record cannot be decrypted in device memory), oldstyle
// negotiation and newstyle that is not fixed (EOPNOTSUPP), structured replies and extended headers
// (never negotiated), trim, zeroes, block status.
//
// A server is not trusted. A reply that is malformed, has the cookie of no operation in progress, or
// comes on the wrong connection causes block.ErrProtocol, which ends both connections; a reply's data
// goes only to the memory of the operation that the reply answers. Cookies contain a count of
// operations, so none is used twice. A bad server can cost at most a handshake of 64 replies of
// 64 KiB within Config.Timeout, and the Pool. A server that sends a byte now and then makes progress,
// so only the context ends a Do with such a server.
//
// Cost: up to four goroutines while Do runs, some 100 bytes for each operation of Config.Depth, and
// the costs of devmem.Stream and devmem.Sender. An operation allocates nothing.
//
// The package is API (README, Stability).
package nbd

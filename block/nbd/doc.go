// Package nbd is a client of the NBD protocol (doc/proto.md of the NetworkBlockDevice/nbd
// repository, cited as proto.md) with payload in GPU memory, also called device memory: it reads into
// GPU memory, and writes from there. It reaches the network and the GPU only through package devmem,
// and its Device implements block.Device. It supports fixed newstyle negotiation, NBD_OPT_GO,
// NBD_CMD_READ, NBD_CMD_WRITE, NBD_CMD_FLUSH and NBD_CMD_DISC, with simple replies.
//
// A [Device] has two connections, or only the one for reads if the export or the Config is read-only:
//
//   - Reads: after the handshake, when no request is outstanding, a flow rule steers the connection to a queue
//     whose buffers are in device memory. The replies' headers, of 16 bytes, arrive there too. While all reads in
//     progress have the same length, headers are at a fixed distance, and the arrived ones are read in one call
//     of devmem.Memory; with several lengths, one header per call. A reply with an error has no data, so the
//     bytes read ahead behind it are no headers: the Device drops them and reads the next header again.
//   - Writes: the Device sends headers by Write, payload by SendDevmem. It does not steer the connection, whose
//     replies consist only of headers.
//
// With Config.Copy no connection is steered, and all payload goes through host memory.
//
// Each of the server's connections may have its own cache: without NBD_FLAG_CAN_MULTI_CONN a client
// should not use two connections (proto.md, Transmission flags), because a read may return data from
// before a write that the server has already confirmed. A Do that wrote ends with NBD_CMD_FLUSH if
// the server has it. With NBD_FLAG_CAN_MULTI_CONN the reads after this flush see the written data;
// without the flag this depends on the server. Within a Do, reads and writes of the same place have no
// order. On a server that accepts one client at a time, as qemu-nbd without --shared, a writable export
// can be opened only with Config.ReadOnly.
//
// Not supported: TLS (EOPNOTSUPP: a record cannot be decrypted in device memory), oldstyle
// negotiation and newstyle that is not fixed (EOPNOTSUPP), structured replies and extended headers
// (never negotiated), trim, zeroes, block status.
//
// A server is not trusted. A reply that is malformed, has the cookie of no operation in progress, or
// comes on the wrong connection causes block.ErrProtocol, which ends both connections; a reply's data
// goes only to the memory of the operation that the reply answers. Cookies contain a count of
// operations, so none is used twice. The Device reads at most 64 replies of 64 KiB in a handshake,
// which takes at most Config.Timeout; later a server can fill only the Pool. A server that sends a byte
// now and then makes progress, so only the context or Close ends a Do with such a server.
//
// Cost: up to four goroutines while Do runs, some 100 bytes for each operation of Config.Depth, and
// the costs of devmem.Stream and devmem.Sender. A successful operation allocates nothing.
//
// The package is API (README, Stability).
package nbd

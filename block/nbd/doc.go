// Package nbd is a client of the NBD protocol (doc/proto.md of the NetworkBlockDevice/nbd repository, cited as
// proto.md) with payload in GPU memory, also called device memory. It supports fixed newstyle negotiation and
// simple replies.
//
// A [Device] has one connection for reads and, unless the export or the Config is read-only, another for
// writes. After the handshake a flow rule steers the connection for reads to a queue whose buffers are in
// device memory, where the headers of replies arrive too, of 16 bytes. On the connection for writes the Device
// sends headers by Write and payload by SendDevmem. With Config.Copy no connection is steered, and payload goes
// through host memory.
//
// A server's connections may have caches of their own: without NBD_FLAG_CAN_MULTI_CONN a read may return data
// from before a confirmed write (proto.md, Transmission flags). If a write succeeded, Do sends NBD_CMD_FLUSH at
// its end, unless Do fails, or the server is shutting down or does not have that request. Within a Do, reads and
// writes of the same place have no order.
//
// Not supported: TLS (a record cannot be decrypted in device memory), oldstyle negotiation and newstyle that
// is not fixed, structured replies and extended headers, trim, zeroes, block status.
//
// A server is not trusted. A reply that is malformed, or answers no operation in progress on its connection,
// causes block.ErrProtocol, and the Device closes its connections.
//
// The package is API (README, Stability).
package nbd

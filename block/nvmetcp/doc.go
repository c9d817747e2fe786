// Package nvmetcp is an NVMe/TCP initiator with data in device memory: it reads into device memory,
// and writes from it. It follows the NVMe TCP Transport Specification 1.0c ("TCP"), NVMe over Fabrics
// 1.1 ("Fabrics") and the NVMe Base Specification 1.4 ("Base"), and Linux's target where these leave a
// choice.
//
// A [Device] is a controller with one I/O queue. Its admin queue has an ordinary connection. The
// Device sets up the I/O queue's connection in the same way; then a flow rule steers this connection to
// the receive queue to which Config.Pool is bound, and from then on everything that the target sends
// on it arrives in device memory. The Device reads the headers of PDUs, 24 bytes each, in place
// (devmem.Stream), many in one call if PDUs of one length follow each other, and gathers data to the
// operation's memory. It sends headers from host memory, data from Config.Data. With Config.Copy there
// is no flow rule, and all payload goes through host memory.
//
// Digests, TLS, authentication, metadata and protection information are not supported; Open fails if
// the target requires one of them. There is no keep alive timer (KATO 0): the target learns from TCP
// when the host is gone, and the host has Config.Timeout. After an error of a connection the Device
// does not connect again: open another Device. When the target has answered a write with success, the
// target has all of the data; but the Device sends no Flush, so the data may still be in a volatile
// write cache.
//
// If the target refuses a read or a write, the Device sends the command again at once, up to five
// times, unless the status has Do Not Retry, as Linux's initiator does. The last status is then the
// operation's error.
//
// The target is not trusted. The Device copies a header, checks the copy, then uses it. It writes data
// only to the remaining memory of the operation that the header names, in order. A breach of the
// protocol causes block.ErrProtocol and a reset of both connections: the Device sends no H2CTermReq, as
// Linux's initiator does not either. A target that neither sends nor acknowledges for Config.Timeout,
// while a command is outstanding, causes a *devmem.StallError. The Device does not detect a target that
// never answers one operation while it answers others: only the context of Do, or Close, ends that
// wait.
//
// Cost: Config.Depth slots of some 100 bytes, two goroutines in Do, the cost of a devmem.Stream, and
// 8 KiB. A C2HData PDU may be as long as its operation: the Device takes its data as it arrives, so
// the pool may be smaller than the PDU.
//
// The package is API (README, Stability).
package nvmetcp

// Package nvmetcp is an NVMe/TCP initiator with data in device memory: it reads into it, and writes
// from it. It follows the NVMe TCP Transport Specification 1.0c ("TCP"), NVMe over Fabrics 1.1
// ("Fabrics") and the NVMe Base Specification 1.4 ("Base"), and Linux's target where these leave a
// choice.
//
// A [Device] is a controller with one I/O queue. Its admin queue has an ordinary connection. The
// I/O queue's connection is set up in the same way; then a flow rule steers it to the receive queue
// to which Config.Pool is bound, and from then on everything that the target sends is in device
// memory. The headers of PDUs, 24 bytes each, are read there (devmem.Stream), many in one call if
// PDUs of one length follow each other; data is gathered to the operation's memory. Headers are
// sent from host memory, data from Config.Data.
//
// Digests, TLS, authentication, metadata and protection information are not supported; the error
// names them. There is no keep alive timer (KATO 0): the target learns from TCP when the host is
// gone, and the host has Config.Timeout. After an error the Device does not connect again: open
// another one. When the target has answered a write, it has all of the data; but no Flush is sent,
// so the data may still be in a volatile write cache.
//
// A command that the target refuses is sent again at once, up to five times, unless the status has
// Do Not Retry, as Linux's initiator does; then its status is the operation's error.
//
// The target is not trusted. A header is read once, checked, then used; data is written only to the
// remaining memory of the operation that it names, in order. A breach of the protocol ends the
// connection with block.ErrProtocol, by a reset: no H2CTermReq is sent, as in Linux's initiator. A
// target that neither sends nor acknowledges for Config.Timeout causes a *devmem.StallError. A
// target that never answers one operation, but answers others, is not detected while there are
// others: the context of Do limits it.
//
// Cost: Config.Depth slots of some 100 bytes, two goroutines in Do, the cost of a devmem.Stream,
// and 8 KiB. A C2HData PDU may be as long as its operation: its data is taken as it arrives, and
// the pool may be smaller.
//
// The package is API (README, Stability).
package nvmetcp

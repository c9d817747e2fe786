// Package nvmetcp is an NVMe/TCP initiator with data in device memory. It follows the NVMe TCP Transport
// Specification 1.0c ("TCP"), NVMe over Fabrics 1.1 ("Fabrics") and the NVMe Base Specification 1.4 ("Base").
//
// A [Device] is a controller with one I/O queue. After the handshake a flow rule steers the queue's connection
// to the receive queue to which Config.Pool is bound, and what the target sends on it arrives in device memory.
// The Device reads the headers of PDUs in place (devmem.Stream), and moves data to the operation's memory. It
// sends headers from host memory, data from Config.Data. With Config.Copy there is no flow rule, and payload
// goes through host memory.
//
// Digests, TLS, authentication, metadata and protection information are not supported. There is no keep alive
// timer (KATO 0). After an error of a connection the Device does not connect again. The Device sends no Flush:
// written data may still be in a volatile write cache of the target.
//
// If the target refuses a read or a write with a status without Do Not Retry, the Device sends the command
// again at once, up to five times.
//
// The target is not trusted. The Device writes data only to the remaining memory of the operation that the
// header names, in order. A breach that it detects causes block.ErrProtocol and a reset of the connections. A
// target that makes no progress for Config.Timeout, while an operation is in progress, causes a
// *devmem.StallError. A target that never answers one operation while it answers others is not detected.
//
// The package is API (README, Stability).
package nvmetcp

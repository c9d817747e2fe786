// Package nvmetcp is an NVMe/TCP initiator with data in device memory. It follows the NVMe TCP Transport
// Specification 1.0c ("TCP"), NVMe over Fabrics 1.1 ("Fabrics") and the NVMe Base Specification 1.4 ("Base").
//
// A [Device] uses one namespace of a controller, through an admin queue and one I/O queue, each with its own TCP
// connection. When the I/O queue is connected, Open adds a flow rule that steers its connection to receive queue
// Config.Queue, to which Open has bound Config.Pool: what the target then sends there arrives in device memory.
// The Device reads the headers of PDUs in place (devmem.Stream), and moves data of a read to the operation's
// memory. It sends headers from host memory, the data of writes from Config.Data. With Config.Copy there is no
// flow rule, and payload goes through host memory.
//
// Digests, TLS, authentication, metadata and protection information are not supported. There is no keep alive
// timer (KATO 0). After an error of a connection the Device does not connect again. The Device sends no Flush
// command: written data may still be in a volatile write cache of the target.
//
// If the target refuses a read or a write with a status without Do Not Retry, the Device sends the command again,
// up to five times, without a pause between.
//
// The target is not trusted. The Device stores received data only in the memory of the read in progress that the
// header names, from its start on, in order (from the start again for a command that it has sent again). A breach
// that it detects causes block.ErrProtocol and a reset of the connections. If the target neither sends nor
// acknowledges a byte for Config.Timeout while Do waits for it, Do returns a *devmem.StallError. A target that
// leaves one operation unanswered is not detected while it answers others.
//
// The package is API (README, Stability).
package nvmetcp

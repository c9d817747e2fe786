// Package nvmetcp is an NVMe/TCP initiator whose data lies in device memory: reads land there, and writes go out from
// there. It follows the NVMe TCP Transport Specification 1.0c ("TCP"), NVMe over Fabrics 1.1 ("Fabrics") and the NVMe
// Base Specification 1.4 ("Base"), and what Linux's target does where these leave a choice.
//
// A [Device] is a controller with one I/O queue. Its admin queue's connection is an ordinary one. The I/O queue's
// connection is set up like that too; then a flow rule steers it to the receive queue that Config.Pool is bound to,
// and from there on all that the target sends lies in device memory. The heads of PDUs, 24 bytes each, are looked
// at there (devmem.Stream), many in one go where PDUs of one length lie behind each other; data is gathered to the
// operation's memory. Heads of what is sent are host memory, data goes out from Config.Data.
//
// Digests, TLS, authentication, metadata and protection information are not supported, and are refused by name. There
// is no keep alive timer (KATO 0): the target learns from TCP when the host is gone, and the host has Config.Timeout.
// After an error the connection is not made again: Open another Device. A write is whole on the target when it has
// answered, but no Flush is sent: a volatile write cache there stays one.
//
// A command that the target refuses is sent again at once, up to five times, unless the status has Do Not Retry, as by
// Linux's initiator; then its status is the operation's error.
//
// What the target sends is hostile until checked. A head is looked at once, checked, then used; data goes nowhere
// but to the rest of the memory of the operation that it names, in order. What breaks the protocol ends the
// connection with block.ErrProtocol, by a reset: no H2CTermReq is sent, as by Linux's initiator. A target that
// neither sends nor acknowledges for Config.Timeout gives a *devmem.StallError. One that never answers an
// operation, but others, is not found out as long as there are others: the context of Do bounds it.
//
// Cost: Config.Depth slots of some 100 bytes, two goroutines in Do, what a devmem.Stream costs, and 8 KiB. A
// C2HData PDU may be as long as its operation: its data is taken as it comes, and the pool may be smaller.
//
// The package is API (README, Stability).
package nvmetcp

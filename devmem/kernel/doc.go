// Package kernel implements package devmem with Linux's own device memory TCP
// (Documentation/networking/devmem.rst), on any network interface whose driver has header split,
// flow rules and memory providers. It works on bare metal and in guests alike and knows no NIC by
// name; what it needs of the kernel is 6.16 for transmit and 6.12 for receive, CAP_NET_ADMIN,
// CAP_NET_RAW, and /proc.
//
// Bindings are made by netlink (family netdev), header split and ntuple too (family ethtool), flow
// rules and RSS by ethtool's ioctl. Whatever a Device changed at the interface its Close sets back:
// bindings, rules, the RSS table, ntuple, tcp-data-split. If the process dies only bindings end by
// themselves. Two devices on one interface disturb each other.
//
// A bind or unbind for receive may have the driver stop the interface's transmit queues, of all
// programs, and forget what waits there: gve does. So after each, and while the memory of a closed
// binding stays in use, packets are sent that have the queues go on, to the interface's own address,
// if anything waits; without CAP_NET_RAW that is a warning in the log. A program that binds queues by
// other means and does not do so can have a send of another wait for ever.
//
// Device memory comes from an [Exporter] as dma-bufs: of a GPU's driver, or, without a GPU, from
// [UDMABuf]; docs/dmabuf.c is the same in C. Each binding has a dma-buf of its own, as the kernel
// tells by nothing but the dma-buf's references when it has let go of a binding's memory. So an
// Exporter keeps no further descriptor of what it gave.
//
// Sockets are the kernel's, bound to the interface and never blocking. A goroutine of the Device
// waits for events of all of them; Device.Close ends it. A connection that is closed with sends
// under way goes on with them, for two minutes or until Device.Close, which resets it. SendDevmem
// ends a packet with each call, and within one where pieces are so small that a segment would
// exceed what drivers can send (maxPieces): such a segment would be dropped and sent again for
// ever.
//
// Where the API is stricter than Linux it is so here: a second receive binding of the same memory
// is EBUSY, a binding that is too small ENOSPC, a send with id 0 EINVAL.
//
// The suite of package devmemtest passes; package kerneltest runs it on a machine with two interfaces.
//
// The package is API (README, Stability).
package kernel

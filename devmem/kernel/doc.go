// Package kernel implements package devmem with Linux's own device memory TCP
// (Documentation/networking/devmem.rst), on any network interface whose driver supports header
// split, flow rules and memory providers. It works on bare metal and in guests, and depends on no
// particular NIC. It needs kernel 6.16 for transmit and 6.12 for receive, CAP_NET_ADMIN,
// CAP_NET_RAW, and /proc.
//
// It makes bindings by netlink (family netdev), sets header split and ntuple by netlink too (family
// ethtool), and flow rules and RSS by ethtool's ioctl. Close of a Device undoes all its changes to
// the interface: bindings, rules, the RSS table, ntuple, tcp-data-split. If the process dies, only
// bindings end by themselves. Two devices on one interface disturb each other.
//
// When a receive binding is made or ended, the driver may stop the interface's transmit queues, for
// all programs, and forget the packets that wait there: gve does. So after each such change, and
// while the memory of a closed binding stays in use, the Device sends packets to the interface's
// own address that make the queues go on, if anything waits; without CAP_NET_RAW it logs a warning.
// Another program that binds queues and does not do so may leave a send of any program waiting for
// ever.
//
// Device memory comes from an [Exporter] as dma-bufs: from a GPU's driver, or, without a GPU, from
// [UDMABuf]; docs/dmabuf.c is the same in C. Each binding has a separate dma-buf, because only the
// number of its references shows when the kernel has released a binding's memory. So an Exporter
// must keep no further descriptor of an exported dma-buf.
//
// Sockets are the kernel's, bound to the interface and non-blocking. A goroutine of the Device
// waits for events of all of them; Device.Close ends it. A connection that is closed with sends in
// progress continues them, for two minutes or until Device.Close, which resets it. SendDevmem ends
// a packet with each call. It also ends one within a call if pieces are so small that a segment
// would have more pieces than drivers can send (maxPieces): such a segment would be dropped and
// retransmitted for ever.
//
// The API is stricter than Linux in some cases: a second receive binding of the same memory is
// EBUSY, a binding that is too small ENOSPC, a send with id 0 EINVAL.
//
// It passes the suite of package devmemtest; package kerneltest runs the suite on a machine with
// two interfaces.
//
// The package is API (README, Stability).
package kernel

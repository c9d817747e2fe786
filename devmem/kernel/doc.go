// Package kernel implements package devmem with Linux's own device memory TCP
// (Documentation/networking/devmem.rst), on any network interface whose driver supports header
// split, flow rules and memory providers. It works on bare metal and in guests, and depends on no
// particular NIC. It needs kernel 6.16 for transmit and 6.12 for receive, CAP_NET_ADMIN, and /proc.
//
// The package makes bindings by netlink (family netdev), sets header split and ntuple by netlink too
// (family ethtool), and flow rules and RSS by ethtool's ioctl. Close of a Device undoes its changes
// to the interface: bindings, rules, the RSS table, ntuple, tcp-data-split; it does not restore the
// rules that Open deleted ([Options], Alone). If the process dies, the kernel ends only the
// bindings. Two devices on one interface disturb each other.
//
// When a program makes or ends a receive binding, the driver may stop the interface's transmit queues,
// for all programs, and leave the packets that wait there unsent: gve does. So after each such change,
// and while the memory of a closed binding stays in use, the Device checks whether packets wait, and
// if so sends packets to the interface's own address, which make the queues continue; without
// CAP_NET_RAW it logs a warning. If another program binds queues without such packets, a send of any
// program may wait for ever.
//
// Device memory comes from an [Exporter] as dma-bufs: from a GPU's driver, or, without a GPU, from
// [UDMABuf]; docs/dmabuf.c makes such a dma-buf in C. Each binding has a separate dma-buf, because
// only the number of a dma-buf's references shows when the kernel has released a binding's memory. So
// an Exporter must keep no further descriptor of an exported dma-buf.
//
// Sockets are the kernel's, bound to the interface and non-blocking. A goroutine of the Device waits
// for events of all sockets; Device.Close ends it. After Close of a connection with sends in progress,
// no unread data and no call of SetLinger, the kernel continues the sends until the peer has
// acknowledged all of them, has acknowledged none for two minutes, or Device.Close resets the
// connection.
// SendDevmem ends a packet with each call. It also ends a packet within a call if pieces are so small
// that a segment would have more pieces than drivers can send (maxPieces): the driver would drop such
// a segment, and TCP would retransmit it for ever.
//
// The API is stricter than Linux in some cases: a second receive binding of the same memory is
// EBUSY, a binding that is too small ENOSPC, a send with id 0 EINVAL.
//
// The package passes the suite of package devmemtest; package kerneltest runs the suite on a machine
// with two interfaces.
//
// The package is API (README, Stability).
package kernel

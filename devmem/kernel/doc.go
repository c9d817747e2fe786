// Package kernel implements package devmem with Linux's own device memory TCP
// (Documentation/networking/devmem.rst), on any network interface whose driver supports header split, flow
// rules and memory providers. It needs kernel 6.16 for transmit and 6.12 for receive, CAP_NET_ADMIN, and /proc.
//
// The package makes bindings by netlink (family netdev), sets header split and ntuple by netlink too (family
// ethtool), and flow rules and RSS by ethtool's ioctl. Close of a Device undoes its changes to the interface,
// but does not restore the rules that Open deleted ([Options], Alone). If the process dies, the kernel ends
// only the bindings. Two devices on one interface disturb each other.
//
// When a program makes or ends a receive binding, the driver may stop the interface's transmit queues, for all
// programs, and leave the packets that wait there unsent: gve does. So after each such change, and while the
// memory of a closed binding stays in use, the Device checks whether packets wait, and if so sends packets to
// the interface's own address, which make the queues continue; without CAP_NET_RAW it logs a warning.
//
// Device memory comes from an [Exporter] as dma-bufs: from a GPU's driver, or from [UDMABuf]; docs/dmabuf.c
// makes such a dma-buf in C. Only the number of a dma-buf's references shows when the kernel has released a
// binding's memory: so each binding has a separate dma-buf, of which the Exporter must keep no further
// descriptor.
//
// Sockets are the kernel's, bound to the interface and non-blocking; one goroutine of the Device waits for
// their events. After Close of a connection with sends in progress, no unread data and no call of SetLinger,
// the kernel continues the sends until the peer has acknowledged them, has acknowledged none for two minutes,
// or Device.Close resets the connection. SendDevmem ends a packet with each call, and within a call where a
// segment would have more pieces than drivers can send (maxPieces): the driver would drop such a segment, and
// TCP would retransmit it for ever.
//
// The API is stricter than Linux: a second receive binding of the same memory is EBUSY, a binding that is too
// small ENOSPC, a send with id 0 EINVAL.
//
// The package is API (README, Stability).
package kernel

// Package kernel implements package devmem with Linux's own device memory TCP
// (Documentation/networking/devmem.rst), on any network interface whose driver supports header split, flow
// rules and memory providers. It needs kernel 6.16 for transmit and 6.12 for receive, CAP_NET_ADMIN, and /proc.
//
// Bindings are made by netlink (family netdev), as are header split and ntuple (family ethtool); flow rules and
// RSS by ethtool's ioctl. Close of a Device undoes its changes to the interface, but does not restore the rules
// that Open deleted ([Options], Alone). Two devices on one interface disturb each other.
//
// A driver may stop the interface's transmit queues, for all programs, when a receive binding is made or ends,
// and leave packets that wait there unsent: gve does. So the Device looks for such packets, and sends others to
// the interface's own address, which make the queues continue; if it finds some and lacks CAP_NET_RAW, it logs a
// warning instead.
//
// Device memory comes from an [Exporter] as dma-bufs; docs/dmabuf.c makes one in C. Only the number of a
// dma-buf's references shows when the kernel has released a binding's memory: so each binding has a separate
// dma-buf, and the Exporter must keep no descriptor of it.
//
// After Close of a connection with sends in progress, no unread data and no time set by SetLinger, the kernel
// continues the sends until the peer has acknowledged them, has acknowledged none for two minutes (more on slow
// machines), or Device.Close resets the connection. SendDevmem ends a packet with each call, and may end
// packets within a call, so that a segment has no more pieces than drivers can send (maxPieces).
//
// Stricter than Linux: a second receive binding of the same memory is EBUSY, one that is too small ENOSPC, a
// send with id 0 EINVAL.
//
// The package is API (README, Stability).
package kernel

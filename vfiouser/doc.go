// Package vfiouser is the server end of the vfio-user protocol (QEMU docs/interop/vfio-user.rst): a
// PCI device in this process for a virtual machine in another. It is independent of the type of the
// device.
//
// A Server serves one Device over a connection. It puts the ranges that the client maps for DMA
// into a dma.Space: a range with a descriptor is memory, a range without one (ROMs) is a reserved
// address that cannot be used. The client gets the reply to a request to unmap a range only
// after the device was called (Device.Unmapping) and every goroutine that was inside the space
// (dma.Space.Enter) has left it.
//
// The client is hostile: each message is checked against the rules in rules.go before a handler
// sees it. A message that breaks the protocol (ErrBadMessage) ends the connection; any other
// message that is wrong or not served gets an error reply, if it wants a reply: a header with
// Linux's errno. Descriptors that no handler keeps are closed, or discarded (dma.Space.Discard).
//
// A range consists of whole pages of 4 KiB, and there are at most 65,535 ranges (dma.MaxRegions), so
// n bytes lie in at most n/4096 + 2. With n ranges mapped, a message that maps or unmaps one takes
// O(log n) time; a message that unmaps several takes O(log n) for each, but at most one pass over
// all. Mapping and unmapping 65,535 ranges takes less than a second of processor time, and less than
// 64 MiB while they are mapped. A message that maps or unmaps one range makes at most 16 KiB of
// garbage; unmapping all 65,535 ranges at once makes at most 32 MiB.
//
// Memory that the client has mapped privately is accepted and not used (dma.ErrNotShared), like
// memory without a descriptor, because QEMU exits if the server refuses to map memory. Each file that
// is mapped privately is logged, in at most 16 lines a connection.
//
// Not served, with ENOTSUP: descriptors for regions (mmap, ioeventfd), DMA by message (memory must
// be shared: share=on), dirty pages, migration. The server never sends commands.
//
// The package is API (README, Stability).
package vfiouser

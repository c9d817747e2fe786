// Package vfiouser is the server end of the vfio-user protocol (QEMU docs/interop/vfio-user.rst): a PCI device in this
// process for a virtual machine in another. It knows no device type.
//
// A Server serves one Device over a connection. What the client maps for DMA is put into a
// dma.Space: with a descriptor it is memory, without one (ROMs) it is a reserved address that
// cannot be used. A range leaves the space, and the client hears that it has, only after the device
// was told (Unmapping) and every worker inside the space has left.
//
// The client is hostile: each message is checked against the rules in rules.go before a handler
// sees it. A message whose length cannot be trusted ends the connection; any other that is wrong or
// not served is answered with an error reply, which is a header and Linux's errno. Descriptors that
// no handler takes are closed.
//
// A range is whole pages of 4 KiB, and there are at most max_dma_maps of them, so n bytes lie in at
// most n/4096 + 2. With n mapped a message that maps or unmaps one takes O(log n) time; one that unmaps
// a range, O(log n) for each in it, and never more than a pass over all: 65,535 are mapped, and unmapped
// again, in less than a second of a processor, and hold less than 64 MiB. A message makes at most 16 KiB
// of garbage; to unmap all 65,535, 32 MiB.
//
// Memory that the client has mapped privately is taken and not used (dma.ErrNotShared), as memory without a descriptor
// is: QEMU ends at an error. That makes a line of log, and 16 lines a connection at the most.
//
// Not served, with ENOTSUP: descriptors for regions (mmap, ioeventfd), DMA by message (memory must
// be shared: share=on), dirty pages, migration. A server never sends commands of its own.
//
// The package is API (README, Stability).
package vfiouser

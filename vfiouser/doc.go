// Package vfiouser is the server end of the vfio-user protocol (QEMU docs/interop/vfio-user.rst): a PCI device
// in this process for a virtual machine in another.
//
// A Server puts the ranges that the client maps for DMA into a dma.Space; a range without a descriptor gets no
// access. The client gets the reply that a range is unmapped only after the device was called
// (Device.Unmapping) and every goroutine that was inside the space (dma.Space.Enter) has left it.
//
// The client may be hostile. Its connection ends after some breaches of the protocol (ErrBadMessage), a fault in mapped
// memory (dma.FaultError), a file whose file system does not answer (dma.ErrBlocked), or too many descriptors that
// cannot be closed (dma.Space.DiscardErr). Another message that is wrong or not served gets an error reply, if it wants
// a reply. Descriptors that no handler keeps are discarded (dma.Space.Discard).
//
// A mapped range consists of whole pages of 4 KiB, and there are at most 65,535 (dma.MaxRegions). 65,535 ranges of one
// file take less than 64 MiB while they are mapped. A message that maps or unmaps one range makes at most 16 KiB of
// garbage; unmapping all 65,535 ranges at once makes at most 32 MiB.
//
// Memory that the client has mapped privately, as far as the space finds it (dma.Space.SetPeer), is accepted and not
// used (dma.ErrNotShared), like memory without a descriptor: QEMU exits if the server refuses to map memory.
//
// The Server refuses requests for these with ENOTSUP: descriptors for regions (mmap, ioeventfd), DMA by message (memory
// must be shared: share=on), dirty pages, migration, masking and triggering of interrupts. It never sends commands.
//
// The package is API (README, Stability).
package vfiouser

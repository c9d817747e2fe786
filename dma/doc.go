// Package dma is a guest's memory as a device sees it: files that are mapped once, address spaces made of
// regions of files, translation from I/O virtual addresses to segments, and a copier that moves the bytes of
// segments.
//
// A Segment is {region, offset, length}, not a slice: only this package turns one into bytes, except that a Pin
// exposes the memory of a ring, whose owner must use atomics on it.
//
// Files owns the mappings: one mmap per file (FileID), reference-counted, so a byte of a file has one address
// and one kind of memory however many spaces map it; for a file of hugetlbfs this holds only within a Space. A
// Space owns its table of regions, which a change replaces as a whole. A worker translates and copies between
// Enter and Leave. Remove, RemoveRange, Replace and Close first install the new table and then wait until the
// workers inside the space have left, so a translated segment stays mapped until its worker leaves. Enter never
// waits. A goroutine that removes from a space while it is inside it deadlocks.
//
// The table is a tree; the old and the new one share nodes. With n regions (at most MaxRegions), Add, Remove
// and a translation to one region take O(log n) time.
//
// The regions may be the entries of an IOTLB (Space.SetIOTLB). An address outside all of them is then ErrMiss
// instead of ErrUnmapped. An error reports one miss, at the first missing address. This package does not talk
// to the IOMMU. A Pin must lie in one entry.
//
// System calls on a peer's descriptor do not wait for the peer. Files accepts only files of tmpfs, hugetlbfs
// and local disks, and asks no server that may be behind a file to find out. A disk has 2 s to answer
// (ErrBlocked). If closing a descriptor might ask a server, the descriptor stays open (Space.Discard), until
// there are too many for a Space (Space.DiscardErr).
//
// A peer may have mapped a file privately: then its guest writes to private copies of the file's pages, and the
// file does not change. A Space that has its peer's pid (SetPeer) checks this, and makes such memory
// inaccessible (ErrNotShared).
//
// A peer may truncate a file while it is mapped. A goroutine that touches mapped memory must have been started
// by Go, have called Guard, or be inside a Space; then Recover turns the fault into a *FaultError that names
// the file. From then on the file is dead, and the spaces that map it report the fault (Faulted). A fault at
// any other address stays a panic.
//
// Linux only.
//
// The package is API (README, Stability).
package dma

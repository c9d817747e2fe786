// Package dma is a guest's memory as a device sees it: files that are mapped once, address spaces made of
// regions of files, translation of addresses to segments, and a copier.
//
// Only this package accesses the bytes of a Segment {region, offset, length}; View and a Pin give memory to others.
//
// Files owns the mappings: one mmap per file (FileID), reference-counted, so a byte of a file has one address
// and one kind of memory however many spaces map it; for a file of hugetlbfs this holds only within a Space. A
// worker is a goroutine that is inside a space, between Enter and Leave, to translate and copy. Remove, RemoveRange,
// Replace and Close install a new table of regions. If they have removed a region, they then wait until the workers
// that were inside the space have left: a translated segment stays mapped until then. Enter never waits. A goroutine
// that removes a region of a space while it is inside it deadlocks.
//
// In a table of n regions, the search and the change of Add and Remove, and a translation to one segment, take
// O(log n) time.
//
// The regions may be the entries of an IOTLB (Space.SetIOTLB). An address outside all of them is then ErrMiss
// instead of ErrUnmapped. An error reports one miss, at the first missing address. A Pin must lie in one entry.
//
// System calls on a peer's descriptor do not wait for the peer. Files accepts only files of tmpfs, hugetlbfs
// and local disks, and asks no server to find out. A disk has 2 s to answer statx (ErrBlocked). Space.Discard does not
// close a descriptor whose closing might ask a server.
//
// A peer may have mapped a file privately: then its guest's writes do not change the file. A Space that has its
// peer's pid (SetPeer) checks this in Add and Replace, at a limited rate, and does not let a device access a region
// that it has found private (ErrNotShared).
//
// A peer may truncate a file while it is mapped. Recover turns the fault into a *FaultError that names the
// file, on a goroutine that Go started or that has called Guard or Space.Enter. From then on the file is dead, and
// the spaces that map it report the fault (Faulted).
//
// Linux only.
//
// The package is API (README, Stability).
package dma

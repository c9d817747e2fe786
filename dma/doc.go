// Package dma is a guest's memory as a device sees it: files that are mapped once, address spaces
// made of regions of files, translation from I/O virtual addresses to segments, and a copier that
// moves the bytes of segments.
//
// A Segment is {region, offset, length}, not a slice: only this package turns one into bytes. So
// this package alone handles bounds, byte counts by kind of memory, faults and (later) dirty pages.
// Rings are the exception: a Pin exposes their memory, because its owner must use atomics on it.
//
// Files owns the mappings: one mmap per file (FileID), reference-counted, so a byte of a file has
// one address and one kind of memory however many spaces map it; for a file of hugetlbfs this holds
// only within a Space. A Space owns its table of regions; a table is immutable, and a change
// replaces it as a whole. A worker translates and copies between Enter and Leave. Remove,
// RemoveRange, Replace and Close first install the new table and then wait until the workers inside
// the space have left, so a translated segment stays mapped until its worker leaves. They wait
// once, however many regions they remove, and not at all if no worker is inside (Space.Waits counts
// the waits). Enter never waits. A goroutine that removes from a space while it is inside it
// deadlocks.
//
// The table is a tree; the old and the new table share nodes. With n regions (at most MaxRegions
// per space), Add, Remove and a translation take O(log n) time; a range takes O(log n) more for
// each of its regions, or O(n) for all. A change allocates at most 16 KiB for each region that it
// adds or removes, most of it garbage at once, and RemoveRange at most 4 MiB for any number; 65,535
// regions occupy at most 16 MiB.
//
// The regions may be the entries of an IOTLB (Space.SetIOTLB). An address outside all of them is
// then ErrMiss instead of ErrUnmapped: after the entry is added, the same call succeeds. An error
// reports one miss, at the first missing address: a range that n entries cover is translated at
// most n+1 times. This package does not talk to the IOMMU: the Space's owner asks it for entries,
// adds them and removes them. A Pin, and so each part of a ring, must lie in one entry.
//
// No system call on a peer's descriptor waits for the peer. Files accepts only files of tmpfs,
// hugetlbfs and local disks. It determines the file system without asking a server that may be
// behind the file: by fcntl(2), and for files that are not memory by reading /proc/self/fd,
// /proc/self/fdinfo and /proc/self/mountinfo. A disk has 2 s to answer (ErrBlocked). If closing a
// descriptor might ask a server, the descriptor stays open (Space.Discard): at most 64 per Space,
// plus the descriptors of one message; then the Space's owner must stop serving (Space.DiscardErr).
//
// A peer may have mapped a file privately: then its guest writes to private copies of the file's
// pages, and the file does not change. A Space that has its peer's pid (SetPeer) checks this, and
// makes such memory inaccessible (ErrNotShared). A check reads at most 1 MiB of /proc/PID/maps; a
// space may make 64 checks at once, and 10 a second.
//
// A peer may truncate a file while it is mapped. A goroutine that touches mapped memory must have been
// started by Go, have called Guard, or be inside a Space; then Recover, which guards each method of the
// Copier that touches memory, turns the fault into a *FaultError that names the file. From then on the
// file is dead, and every Space that maps it reports the fault (Faulted); the fault does not affect
// other spaces. A fault at any other address stays a panic.
//
// The package is independent of rings, packets and protocols. Linux only.
//
// The package is API (README, Stability).
package dma

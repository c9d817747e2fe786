// Package dma is a guest's memory as a device sees it: files mapped once, address spaces of regions in them,
// translation from I/O virtual addresses to places, and the one copier through which every byte moves.
//
// A Segment is a place {region, offset, length}, not a slice: only this package turns one into bytes, so
// bounds, byte counts by kind of memory, faults and (later) dirty pages are dealt with here and nowhere
// else. Rings are the exception: a Pin hands out their memory, because its owner must use atomics on it.
//
// Files owns the mappings: one mmap per file (FileID), counted, so a place in a file has one
// address and one kind of memory however many spaces map it. A Space owns its table of regions, which is
// immutable and replaced as a whole. A worker translates and copies between Enter and Leave;
// Remove, RemoveRange, Replace and Close put the new table in place first and then wait for the
// workers that were inside this space, so what a worker translated stays mapped until it leaves.
// They wait once, however many regions go, and not at all if nobody is inside (Space.Waits counts).
// Nobody waits in Enter. Removing from a space while inside it waits for itself forever.
//
// The table is a tree whose nodes are shared by old and new: with n regions, of which a space has
// MaxRegions at most, Add, Remove and a translation take O(log n) time, and each region of a range
// O(log n) more, or all of them O(n). A change allocates at most 16 KiB for each region that it adds
// or removes, most of it garbage at once, and RemoveRange of however many no more than 4 MiB; 65,535
// regions hold less than 16 MiB.
//
// The regions may be the entries of an IOTLB (Space.SetIOTLB). An address in none of them is then
// ErrMiss, an answer of its own: the entry may be added, and the same call succeeds. One miss is
// told at a time, for the first address that lacks: a range that n entries cover is translated at
// most n+1 times. The package asks no IOMMU and drops no entry; a Pin, and so each part of a ring,
// must lie in one entry.
//
// No system call on a peer's descriptor waits for the peer. Files takes files of tmpfs, hugetlbfs and
// of local disks only, and knows which is which without asking a server that may be behind one: 7
// system calls, and a look at /proc/self/mountinfo for what is no memory. A disk has 2 s to answer
// (ErrBlocked). A descriptor that may not even be closed stays open (Space.Discard), 64 of them in a
// Space and those of one message; then the Space serves nobody any more (Space.DiscardErr).
//
// A peer may have a file mapped privately: its guest writes to copies of the file's pages, and the file has none of it.
// A Space that knows its peer (SetPeer) looks, and such memory is not accessible (ErrNotShared). A look reads at most
// 1 MiB of /proc/PID/maps; there are 64 at once, and 10 a second.
//
// A peer may truncate a file under its mapping. Goroutines that touch mapped memory are started by Go, and the fault is
// turned by Recover, which guards each call of the Copier, into a *FaultError that names the file: the file is dead
// from then on, every Space that maps it is told (Faulted), and no other. A fault at any other address panics on.
//
// The package knows no rings, no packets and no protocol. Linux only.
//
// The package is API (README, Stability).
package dma

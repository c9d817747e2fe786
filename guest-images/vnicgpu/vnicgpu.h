/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * The interface of /dev/vnicgpuN, which vnicgpu.ko makes for a GPU of vnic: a PCI device
 * (1af4:1110) whose BAR 2 is its memory. Offsets are in that memory. Offsets and sizes are in bytes,
 * in whole pages of 4096. An open file owns the memory that it allocates, until the file, all its
 * mappings and all its dma-bufs are gone. mmap(2) at an offset, with MAP_SHARED, maps the file's
 * memory for the CPU.
 */
#ifndef _UAPI_VNICGPU_H
#define _UAPI_VNICGPU_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define VNICGPU_VERSION 1

struct vnicgpu_info {
	__u32 version;
	__u32 mapped;	/* current mappings of dma-bufs for devices */
	__u64 size;	/* of the memory, in bytes */
	__u64 free;	/* bytes */
	__u64 private;	/* pages of programs in the GPU's memory now */
	__u64 to_gpu;	/* pages ever moved to the GPU */
	__u64 to_ram;	/* ... moved back by VNICGPU_MIGRATE */
	__u64 faulted;	/* ... moved back because a CPU touched them, or by VNICGPU_FAULT */
	__u64 evicted;	/* ... moved back because the GPU was removed */
};

/*
 * Moves pages of the calling program, [addr, addr + size), to the GPU or back. Pages that cannot
 * be moved stay. EFAULT: part of the range is not mapped; pages before it may have moved.
 * EOPNOTSUPP: the kernel lacks CONFIG_DEVICE_PRIVATE.
 */
struct vnicgpu_migrate {
	__u64 addr;
	__u64 size;
	__u32 flags;	/* VNICGPU_TO_GPU; 0: back to RAM */
	__u32 pad;
	__u64 moved;	/* out: pages moved, also before an error such as EFAULT */
};
#define VNICGPU_TO_GPU 1

/*
 * Returns where the calling program's pages of [addr, addr + size) are, without moving any. E2BIG:
 * more than 2^20 pages.
 */
struct vnicgpu_where {
	__u64 addr;
	__u64 size;
	__u64 places;	/* address of an array of __u64, one per page: an offset in the GPU, or a constant below */
};
#define VNICGPU_RAM	(~0ULL)		/* in RAM */
#define VNICGPU_ABSENT	(~0ULL - 1)	/* not present, or in another GPU */

/* Allocates memory in one zeroed piece. ENOMEM: no free piece of this alignment is large enough. */
struct vnicgpu_alloc {
	__u64 size;
	__u64 align;	/* a power of two from 4096 to 2^30; 0: 4096 */
	__u64 offset;	/* out */
};

/* Exports [offset, offset + size) as a dma-buf. */
struct vnicgpu_export {
	__u64 offset;
	__u64 size;
	__u32 flags;	/* O_CLOEXEC, or 0 */
	__s32 fd;	/* out */
};

/*
 * Returns the offset of the mailbox, which the driver makes if there is none yet. The mailbox is a
 * page in which the driver writes notes: requests to the NIC to release pages. README.md has the
 * layout.
 */
struct vnicgpu_mailbox {
	__u64 offset;	/* out: in the GPU's memory */
	__u32 size;	/* out: 4096 */
	__u32 ack_ms;	/* out: how long the NIC may take to answer a note, in ms */
};

/*
 * Opens a region: a range of the calling program's memory, in whole pages, at most 1 GiB, whose
 * pages a NIC gets by VNICGPU_FAULT. Before Linux moves or unmaps a page that the NIC has, it waits,
 * if it may, until the NIC has released the page, or has not answered in time. The region belongs to
 * the open file, which may have 16 (EMFILE). No two regions of a guest have the same id at a time.
 */
struct vnicgpu_region_open {
	__u64 addr;
	__u64 size;
	__u32 id;	/* out */
	__u32 pad;
};

/*
 * Closes a region. When the call returns 0, the NIC has released the region's pages, or has not
 * answered in time. ENOENT: the file has no such region.
 */
struct vnicgpu_region_close {
	__u32 id;
	__u32 pad;
};

/*
 * Makes pages of a region present, and returns for each page an entry with its place or an errno. The
 * NIC may use the places until a note (VNICGPU_MAILBOX) takes them back. This call's result and each
 * note have a generation of the region. A note with a greater one (a positive difference, as __s32)
 * is later than the result, and revokes the result's places of pages in the note's range.
 *
 * EIO: the region is quarantined, because the NIC did not answer in time. ESRCH: the owner of the
 * memory has exited. ENOENT: there is no such region, or it is closed. ENODEV: the GPU is gone.
 * EINTR: a fatal signal.
 */
struct vnicgpu_fault {
	__u32 id;
	__u32 flags;		/* VNICGPU_FAULT_... */
	__u64 first;		/* first page, counted from the region's start */
	__u32 count;		/* number of pages, at most 64 */
	__u32 generation;	/* out */
	__u64 entries;		/* address of an array of __u64, one per page: VNICGPU_ENTRY_... */
};
#define VNICGPU_FAULT_WRITE	1	/* the NIC will write to the pages */
#define VNICGPU_FAULT_RAM	2	/* move pages that are in the GPU to RAM first */

/*
 * An entry: bits 0 and 1 are its kind, and bits 12 and up its place. An invalid entry has instead an
 * errno in bits 16 and up. EFAULT or EPERM: not mapped, not with this access, or the page fault
 * failed. EOPNOTSUPP: memory of a file, shared, or of another device. EAGAIN: repeat the call for
 * this page.
 */
#define VNICGPU_ENTRY_INVALID	0
#define VNICGPU_ENTRY_RAM	1	/* the place is a physical address of the guest */
#define VNICGPU_ENTRY_GPU	2	/* the place is an offset in the GPU's memory */
#define VNICGPU_ENTRY_KIND	3
#define VNICGPU_ENTRY_WRITE	4	/* a flag: the NIC may write to the page */
#define VNICGPU_ENTRY_ERRNO	16	/* the bit where the errno begins */

#define VNICGPU_WAITS 40
struct vnicgpu_region_stats {
	__u32 id;
	__u32 quarantined;	/* out, like the fields below; 1: the NIC did not answer in time; else 0 */
	__u64 mapped;		/* pages that the NIC may use now */
	__u64 faults;		/* VNICGPU_FAULT calls that made entries */
	__u64 ram, gpu, invalid;	/* entries by kind */
	__u64 invalidations;	/* invalidations, or the region's end, of pages that the NIC had */
	__u64 untold;		/* invalidations of other pages: nothing to release */
	__u64 refused;		/* invalidations that failed, because they must not wait */
	__u64 timeouts;		/* invalidations, or ends, that the NIC did not answer in time */
	/*
	 * Histogram of the time that Linux waited for the NIC: waits[i] counts waits of w
	 * microseconds, rounded down, with 2^i <= w * w < 2^(i + 1); the first and last element
	 * count the shorter and longer ones, too.
	 */
	__u32 waits[VNICGPU_WAITS];
};

/*
 * From the first call on, pages of programs in the GPU's memory are filled with one byte when they
 * are freed or move away. A changed byte means that somebody wrote to free memory.
 */
struct vnicgpu_poison {
	__u64 left;	/* out: pages freed since the first call */
	__u64 held;	/* ... free and filled now */
	__u64 broken;	/* ... found changed since the first call */
};

/*
 * The reason of a note, why the NIC must release pages, is a value of enum mmu_notifier_event
 * (include/linux/mmu_notifier.h), or one of these.
 */
#define VNICGPU_REASON_REMOVED	0x100	/* the GPU is being removed */
#define VNICGPU_REASON_CLOSED	0x101	/* the region is being closed */

/*
 * Errors of several calls: ENODEV: the device was removed. EINVAL: an argument is invalid.
 * EACCES: the range is not in one allocation of the file.
 */
#define VNICGPU_IOC		0xE9
#define VNICGPU_GET_INFO	_IOR(VNICGPU_IOC, 0x00, struct vnicgpu_info)
#define VNICGPU_ALLOC		_IOWR(VNICGPU_IOC, 0x01, struct vnicgpu_alloc)
#define VNICGPU_EXPORT		_IOWR(VNICGPU_IOC, 0x02, struct vnicgpu_export)
#define VNICGPU_MIGRATE		_IOWR(VNICGPU_IOC, 0x03, struct vnicgpu_migrate)
#define VNICGPU_WHERE		_IOW(VNICGPU_IOC, 0x04, struct vnicgpu_where)
#define VNICGPU_MAILBOX		_IOR(VNICGPU_IOC, 0x05, struct vnicgpu_mailbox)
#define VNICGPU_REGION_OPEN	_IOWR(VNICGPU_IOC, 0x06, struct vnicgpu_region_open)
#define VNICGPU_REGION_CLOSE	_IOW(VNICGPU_IOC, 0x07, struct vnicgpu_region_close)
#define VNICGPU_FAULT		_IOWR(VNICGPU_IOC, 0x08, struct vnicgpu_fault)
#define VNICGPU_REGION_STATS	_IOWR(VNICGPU_IOC, 0x09, struct vnicgpu_region_stats)
#define VNICGPU_POISON		_IOR(VNICGPU_IOC, 0x0a, struct vnicgpu_poison)

#endif

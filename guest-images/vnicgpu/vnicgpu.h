/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * What programs ask of /dev/vnicgpuN, which vnicgpu.ko makes for a GPU of vnic's: a PCI device (1af4:1110) whose BAR 2
 * is its memory. Offsets and sizes are bytes of that memory, whole pages of 4096. An open file has the memory that it
 * allocates, for as long as it, a mapping of it or a dma-buf of it is there. mmap(2) at an offset gives memory of the
 * file's to the CPU, shared.
 */
#ifndef _UAPI_VNICGPU_H
#define _UAPI_VNICGPU_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define VNICGPU_VERSION 1

struct vnicgpu_info {
	__u32 version;	/* VNICGPU_VERSION of the driver */
	__u32 mapped;	/* mappings of dma-bufs for devices, now */
	__u64 size;	/* of the memory */
	__u64 free;	/* of it, in one piece or several */
	__u64 private;	/* pages of programs that are in it, now */
	__u64 to_gpu;	/* pages that were moved there, ever */
	__u64 to_ram;	/* ... and back, as was asked for */
	__u64 faulted;	/* ... as a CPU touched them */
	__u64 evicted;	/* ... as the GPU was removed */
};

/*
 * Moves pages of the calling program, [addr, addr + size), to the GPU or back. What cannot be moved stays: pages of
 * files, of memory that is shared or pinned, and where there is no memory. EFAULT: nothing is mapped there; what lies
 * before was moved.
 */
struct vnicgpu_migrate {
	__u64 addr;
	__u64 size;
	__u32 flags;	/* VNICGPU_TO_GPU; without, they come back */
	__u32 pad;	/* 0 */
	__u64 moved;	/* out: pages */
};
#define VNICGPU_TO_GPU 1

/*
 * Says where the pages of [addr, addr + size) are, without moving any. E2BIG: more than 2^20 pages.
 */
struct vnicgpu_where {
	__u64 addr;
	__u64 size;
	__u64 places;	/* address of an array of __u64, one for each page: an offset in the GPU's memory, or below */
};
#define VNICGPU_RAM	(~0ULL)		/* in RAM, or in the memory of another device */
#define VNICGPU_ABSENT	(~0ULL - 1)	/* never touched, on a disk, or nothing is mapped there */

/* Memory in one piece, whose bytes are 0. ENOMEM: there is no such piece. */
struct vnicgpu_alloc {
	__u64 size;
	__u64 align;	/* a power of two; 0: 4096 */
	__u64 offset;	/* out */
};

/*
 * A dma-buf of [offset, offset + size). Which devices can attach it is Linux's business (drivers/pci/p2pdma.c):
 * EOPNOTSUPP for one that cannot reach the GPU.
 */
struct vnicgpu_export {
	__u64 offset;
	__u64 size;
	__u32 flags;	/* O_CLOEXEC, or 0 */
	__s32 fd;	/* out */
};

/*
 * Where the host finds the page by which the driver tells the NIC of pages that it may not use any more (README.md has
 * its layout). The driver makes it when it is asked for first, or with the first region.
 */
struct vnicgpu_mailbox {
	__u64 offset;	/* out: in the GPU's memory */
	__u32 size;	/* out: 4096 */
	__u32 ack_ms;	/* out: how long an answer of the NIC may take */
};

/*
 * A range of the calling program's memory, whole pages, 1 GiB at most, of which a NIC may have pages: those that
 * VNICGPU_FAULT gives it. What becomes of them the NIC is told, and Linux waits until it has let go of them. The region
 * is the open file's, 16 at most (EMFILE), until it is closed. Its number is no other's in this guest.
 */
struct vnicgpu_region_open {
	__u64 addr;
	__u64 size;
	__u32 id;	/* out */
	__u32 pad;	/* 0 */
};

/* The NIC has no page of it any more when this returns. ENOENT: the file has no such region. */
struct vnicgpu_region_close {
	__u32 id;
	__u32 pad;	/* 0 */
};

/*
 * Has pages of a region be there, and says where: the NIC may use them from then on, until it is told otherwise. The
 * caller may be another program than that whose memory it is. Of what the NIC is told, and of each answer, goes the
 * region's generation: what is told with a greater one (of which the difference is positive, as __s32) is later than
 * the answer, and takes it back.
 *
 * EIO: the region is quarantined, as the NIC has not answered in time. ESRCH: the program is gone. ENOENT: no such
 * region, or it is closed. ENODEV: so is the GPU. EINTR: a fatal signal.
 */
struct vnicgpu_fault {
	__u32 id;
	__u32 flags;		/* VNICGPU_FAULT_... */
	__u64 first;		/* page of the region */
	__u32 count;		/* of pages, 64 at most */
	__u32 generation;	/* out */
	__u64 entries;		/* address of an array of __u64, one for each page: VNICGPU_ENTRY_... */
};
#define VNICGPU_FAULT_WRITE	1	/* they are to be written */
#define VNICGPU_FAULT_RAM	2	/* what is in the GPU comes back to RAM first */

/*
 * An entry: bits 0 and 1 say what it is, and bits 12 and up where. One that is invalid has an errno in bits 16 and up:
 * EFAULT: nothing is mapped there, or not for this. EOPNOTSUPP: no memory of the program's alone, but a file's or
 * shared. EAGAIN: it has changed too often meanwhile; ask again.
 */
#define VNICGPU_ENTRY_INVALID	0
#define VNICGPU_ENTRY_RAM	1	/* at this physical address of the guest */
#define VNICGPU_ENTRY_GPU	2	/* at this offset of the GPU's memory */
#define VNICGPU_ENTRY_KIND	3
#define VNICGPU_ENTRY_WRITE	4	/* and may be written */
#define VNICGPU_ENTRY_ERRNO	16	/* shift */

/* What of a region was, ever. */
#define VNICGPU_WAITS 40
struct vnicgpu_region_stats {
	__u32 id;
	__u32 quarantined;	/* out, and so are all others: 1: it is */
	__u64 mapped;		/* pages that the NIC may have, now */
	__u64 faults;		/* VNICGPU_FAULT that were answered; in them: */
	__u64 ram, gpu, invalid;	/* entries */
	__u64 invalidations;	/* of pages that the NIC may have had: it was told */
	__u64 untold;		/* of others */
	__u64 refused;		/* where Linux did not want to wait, and it was told nothing */
	__u64 timeouts;		/* 1 at most: the region is quarantined by it */
	/*
	 * How long Linux has waited for the NIC: waits[i] counts those of w microseconds, rounded down, where
	 * 2^i <= w * w < 2^(i + 1); waits[0] has those of 0, too, and the last those that are longer.
	 */
	__u32 waits[VNICGPU_WAITS];
};

/*
 * From the first call on, pages that programs had in the GPU are filled with one byte as they leave them. It is an
 * error of whoever uses the GPU's memory if one has changed before it is given to somebody again. Each call looks at all that
 * are free.
 */
struct vnicgpu_poison {
	__u64 left;	/* out: pages that were left, ever */
	__u64 held;	/* ... that are free and filled, now */
	__u64 broken;	/* ... that had changed, ever */
};

/* Why the NIC has to let go of pages: an enum mmu_notifier_event of Linux (include/linux/mmu_notifier.h), or: */
#define VNICGPU_REASON_REMOVED	0x100	/* the GPU is removed */
#define VNICGPU_REASON_CLOSED	0x101	/* the region is closed */

/* ENODEV of each: the device was removed. EINVAL: no whole pages. EACCES: not all of it is memory of the file's. */
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

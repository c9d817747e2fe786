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

/* ENODEV of each: the device was removed. EINVAL: no whole pages. EACCES: not all of it is memory of the file's. */
#define VNICGPU_IOC		0xE9
#define VNICGPU_GET_INFO	_IOR(VNICGPU_IOC, 0x00, struct vnicgpu_info)
#define VNICGPU_ALLOC		_IOWR(VNICGPU_IOC, 0x01, struct vnicgpu_alloc)
#define VNICGPU_EXPORT		_IOWR(VNICGPU_IOC, 0x02, struct vnicgpu_export)
#define VNICGPU_MIGRATE		_IOWR(VNICGPU_IOC, 0x03, struct vnicgpu_migrate)
#define VNICGPU_WHERE		_IOW(VNICGPU_IOC, 0x04, struct vnicgpu_where)

#endif

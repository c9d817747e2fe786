/* SPDX-License-Identifier: GPL-2.0 */
#ifndef _VNICGPU_INTERNAL_H
#define _VNICGPU_INTERNAL_H

#include <linux/kref.h>
#include <linux/miscdevice.h>
#include <linux/pci.h>
#include <linux/rwsem.h>
#include <linux/wait.h>

#include "vnicgpu.h"

struct gen_pool;
struct p2pdma_provider;
struct vm_area_struct;

/* The BAR that is memory: BAR 2 of QEMU's ivshmem-plain (QEMU docs/specs/ivshmem-spec.rst). */
#define VNICGPU_BAR 2

/*
 * A GPU. Its driver's binding has a reference, and so has each open file; dma-bufs have a file. What is the PCI
 * device's may be used under lock, while gone is false.
 */
struct vnicgpu {
	struct kref ref;
	struct pci_dev *pdev;
	struct miscdevice misc;
	char name[16];
	int id;

	resource_size_t start, size;		/* of the BAR */
	struct p2pdma_provider *provider;
	void *mem;				/* the BAR, for the CPU */
	struct gen_pool *pool;			/* of its addresses, those that nobody has */

	struct rw_semaphore lock;
	bool gone;				/* under lock: the device was removed */
	struct inode *inode;			/* under lock: of the first file; CPU mappings of all files are its mapping's */

	atomic_t mapped;			/* mappings of dma-bufs for devices */
	wait_queue_head_t unmapped;
};

/* An open file, with the memory that is its own. */
struct vnicgpu_file {
	struct vnicgpu *gpu;
	struct mutex lock;
	struct list_head pieces;		/* under lock */
};

/* VNICGPU_ALLOC. Whoever calls has gpu->lock, and gone is false. */
int vnicgpu_alloc(struct vnicgpu_file *f, struct vnicgpu_alloc *arg);

/* Checks that [offset, offset + size) is whole pages of a piece of the file's: EINVAL, EACCES. */
int vnicgpu_owns(struct vnicgpu_file *f, u64 offset, u64 size);

/* Frees all that a file has, for its last user is gone. */
void vnicgpu_free_pieces(struct vnicgpu_file *f);

/* Maps memory of a file's for the CPU: vma->vm_pgoff is its place. */
int vnicgpu_mmap(struct file *file, struct vm_area_struct *vma);

/* VNICGPU_EXPORT of a file, which the dma-buf keeps. */
int vnicgpu_export(struct file *file, struct vnicgpu_export *arg);

#endif

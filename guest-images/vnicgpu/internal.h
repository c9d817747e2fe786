/* SPDX-License-Identifier: GPL-2.0 */
#ifndef _VNICGPU_INTERNAL_H
#define _VNICGPU_INTERNAL_H

#include <linux/bitmap.h>
#include <linux/kref.h>
#include <linux/memremap.h>
#include <linux/miscdevice.h>
#include <linux/mmu_notifier.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/spinlock.h>
#include <linux/srcu.h>
#include <linux/wait.h>

#include "compat.h"
#include "vnicgpu.h"

/* The page by which the NIC is told of pages that it may not use any more, and how much it takes at the same time. */
#define VNICGPU_MAILBOX_SIZE 4096
#define VNICGPU_SLOTS 63

struct gen_pool;
struct resource;
struct p2pdma_provider;
struct vm_area_struct;

/* The BAR that is memory: BAR 2 of QEMU's ivshmem-plain (QEMU docs/specs/ivshmem-spec.rst). */
#define VNICGPU_BAR 2

/*
 * A GPU. Its driver's binding has a reference, and so has each open file; dma-bufs have a file. What is the PCI
 * device's may be used between vnicgpu_enter and vnicgpu_exit.
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

	bool gone;				/* the device was removed */
	struct mutex lock;
	struct list_head files;			/* under lock: those that are open */

	atomic_t mapped;			/* mappings of dma-bufs for devices */
	wait_queue_head_t unmapped;

	/* Of private.c: a page of pgmap for each page of the memory, or none. */
	struct mutex private_lock;
	struct resource *region;		/* under private_lock: of pgmap; NULL: it is not there */
	struct dev_pagemap pgmap;
	atomic_long_t private;			/* pages that programs have */
	atomic64_t to_gpu, to_ram, faulted, evicted;

	/* Of mailbox.c. What is not under a lock does not change while there is a region. */
	struct mutex mailbox_lock;
	bool has_mailbox;			/* under mailbox_lock */
	u64 mailbox;				/* offset of its page */
	unsigned int ack_ms;			/* how long an answer may take */
	spinlock_t slots_lock;
	DECLARE_BITMAP(slots, VNICGPU_SLOTS);	/* under slots_lock: those that somebody waits for */
	__le32 *unanswered;			/* under slots_lock: state of the last note that was given up; NULL: none */

	/* Of poison.c. */
	unsigned long *poisoned;		/* bit map of pages that were left; NULL: nobody has asked */
	spinlock_t poison_lock;
	u64 left, broken;			/* under poison_lock */

	/* Of region.c. */
	struct mutex regions_lock;
	struct list_head regions;		/* under regions_lock */
};

/*
 * Whether the GPU is there, and stays until vnicgpu_exit. It may be asked in any context that may sleep, under
 * mmap_lock and outside, and a GPU that is being removed keeps nobody waiting. Between the two no memory of a program
 * is read or written: who serves its page faults (userfaultfd) could put off the removal of each GPU for ever.
 */
bool vnicgpu_enter(struct vnicgpu *gpu, int *idx);
void vnicgpu_exit(int idx);

/* An open file, with the memory that is its own. */
struct vnicgpu_file {
	struct vnicgpu *gpu;
	struct file *file;			/* that has it */
	struct list_head list;			/* of gpu->files */
	struct mutex lock;
	struct list_head pieces;		/* under lock */
	struct list_head regions;		/* under lock */
	unsigned int nregions;			/* under lock; those that are being opened are counted */
};

/* VNICGPU_ALLOC. */
int vnicgpu_alloc(struct vnicgpu_file *f, struct vnicgpu_alloc *arg);

/* Checks that [offset, offset + size) is whole pages of a piece of the file's: EINVAL, EACCES. */
int vnicgpu_owns(struct vnicgpu_file *f, u64 offset, u64 size);

/* Frees all that a file has, for its last user is gone. */
void vnicgpu_free_pieces(struct vnicgpu_file *f);

/* Maps memory of a file's for the CPU: vma->vm_pgoff is its place. */
int vnicgpu_mmap(struct file *file, struct vm_area_struct *vma);

/* VNICGPU_EXPORT of a file, which the dma-buf keeps. */
int vnicgpu_export(struct file *file, struct vnicgpu_export *arg);

/* VNICGPU_MIGRATE and VNICGPU_WHERE, of the calling program. The latter enters and exits by itself. */
int vnicgpu_migrate(struct vnicgpu *gpu, struct vnicgpu_migrate *arg);
int vnicgpu_where(struct vnicgpu *gpu, const struct vnicgpu_where *arg);

/* Whether a page is of the GPU's memory, and then where it is. Between vnicgpu_enter and vnicgpu_exit. */
bool vnicgpu_private_at(const struct vnicgpu *gpu, const struct page *page, u64 *offset);

/* Moves all pages of programs to RAM, and takes their struct pages away. Nobody enters any more. */
void vnicgpu_private_end(struct vnicgpu *gpu);

/* A page is given back, or memory is taken of what nobody had. In any context. */
void vnicgpu_poison_left(struct vnicgpu *gpu, u64 offset);
void vnicgpu_poison_taken(struct vnicgpu *gpu, u64 offset, u64 size);

/* VNICGPU_POISON. */
int vnicgpu_poison(struct vnicgpu *gpu, struct vnicgpu_poison *arg);

/* The mailbox is made, if it is not there. ENOMEM: the GPU has no page left. */
int vnicgpu_mailbox(struct vnicgpu *gpu);

/* Nobody tells anything any more: the page is given back. */
void vnicgpu_mailbox_end(struct vnicgpu *gpu);

/*
 * Has Linux call ops when pages of a program move or go. The first time, Linux takes all locks of the program's memory,
 * and gives up where a signal is pending (mm/vma.c, mm_take_all_locks). The ioctl then begins again when the signal was
 * handled, as fork does (kernel/fork.c): no program has to expect EINTR. It takes back first what it has changed.
 */
static inline int vnicgpu_watch(struct mmu_interval_notifier *n, struct mm_struct *mm, unsigned long start,
				unsigned long size, const struct mmu_interval_notifier_ops *ops)
{
	int ret = mmu_interval_notifier_insert(n, mm, start, size, ops);

	return ret == -EINTR ? -ERESTARTNOINTR : ret;
}

/* What the NIC is told: that it has to let go of pages of a region. */
struct vnicgpu_note {
	u32 region, generation, reason;
	u64 first, pages;
};

/*
 * Tells it, and waits until it has let go of them. ETIMEDOUT: it has not said so in gpu->ack_ms; who asked has to see
 * to it that this is not asked of it again. It sleeps, allocates nothing, and no signal ends it.
 */
int vnicgpu_tell(struct vnicgpu *gpu, const struct vnicgpu_note *note);

/*
 * VNICGPU_REGION_OPEN, of the calling program; VNICGPU_REGION_STATS, _CLOSE and VNICGPU_FAULT, of any that has the
 * file. The last two are called outside vnicgpu_enter and vnicgpu_exit: a region can be closed whose GPU is gone, and
 * faulting enters and exits by itself.
 */
int vnicgpu_region_open(struct vnicgpu_file *f, struct vnicgpu_region_open *arg);
int vnicgpu_region_stats(struct vnicgpu_file *f, struct vnicgpu_region_stats *arg);
int vnicgpu_region_close(struct vnicgpu_file *f, const struct vnicgpu_region_close *arg);
int vnicgpu_region_fault(struct vnicgpu_file *f, struct vnicgpu_fault *arg);

/* Closes all regions of a file, for its last user is gone. */
void vnicgpu_regions_close(struct vnicgpu_file *f);

/* Takes all pages of all regions from the NIC, for good, and then the mailbox. Nobody enters any more. */
void vnicgpu_regions_end(struct vnicgpu *gpu);

#endif

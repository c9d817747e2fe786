/* SPDX-License-Identifier: GPL-2.0 */
#ifndef _VNICGPU_INTERNAL_H
#define _VNICGPU_INTERNAL_H

#include <linux/bitmap.h>
#include <linux/cleanup.h>
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

#define VNICGPU_MAILBOX_SIZE 4096
#define VNICGPU_SLOTS 63

struct gen_pool;
struct resource;
struct p2pdma_provider;
struct vm_area_struct;

/* QEMU's ivshmem-plain (docs/specs/ivshmem-spec.rst). */
#define VNICGPU_BAR 2

/* Between vnicgpu_enter and vnicgpu_exit the PCI device is present. */
struct vnicgpu {
	struct kref ref;
	struct pci_dev *pdev;
	struct miscdevice misc;
	char name[16];
	int id;

	resource_size_t start, size;		/* of the BAR */
	struct p2pdma_provider *provider;
	void *mem;				/* the BAR, for the CPU */
	struct gen_pool *pool;			/* free addresses of the BAR */

	bool gone;
	struct mutex lock;
	struct list_head files;			/* under lock */

	atomic_t mapped;			/* mappings of dma-bufs for devices */
	wait_queue_head_t unmapped;

	/* Used by private.c. */
	struct mutex private_lock;
	struct resource *region;		/* under private_lock: addresses of pgmap; NULL: none yet */
	struct dev_pagemap pgmap;
	atomic_long_t private;			/* pages in use by programs */
	atomic64_t to_gpu, to_ram, faulted, evicted;

	/* Used by mailbox.c. Those without a lock do not change while a region exists. */
	struct mutex mailbox_lock;
	bool has_mailbox;			/* under mailbox_lock */
	u64 mailbox;				/* offset of the mailbox page */
	unsigned int ack_ms;			/* how long the NIC may take to answer */
	spinlock_t slots_lock;
	DECLARE_BITMAP(slots, VNICGPU_SLOTS);	/* under slots_lock: slots with a waiting sender */
	__le32 *unanswered;			/* under slots_lock: state of the last note whose sender gave up; NULL: none, or answered */

	/* Used by poison.c. */
	unsigned long *poisoned;		/* bit map of free pages filled with the poison byte; NULL: not enabled */
	spinlock_t poison_lock;
	u64 left, broken;			/* under poison_lock */

	/* Used by region.c. */
	struct mutex regions_lock;
	struct list_head regions;		/* under regions_lock */
};

/*
 * Returns whether the GPU is present. If so, its removal waits for vnicgpu_exit; do not read or write
 * a program's memory in between: a program that serves that memory's page faults (userfaultfd)
 * could delay the removal for ever. The caller may sleep in between. vnicgpu_enter does not wait for
 * a removal in progress.
 */
bool vnicgpu_enter(struct vnicgpu *gpu, int *idx);
void vnicgpu_exit(int idx);

struct vnicgpu_file {
	struct vnicgpu *gpu;
	struct file *file;
	struct list_head list;
	struct mutex lock;
	struct list_head pieces;		/* under lock */
	struct list_head regions;		/* under lock */
	unsigned int nregions;			/* under lock; includes regions that are being opened */
};

int vnicgpu_alloc(struct vnicgpu_file *f, struct vnicgpu_alloc *arg);

/* EINVAL: [offset, offset + size) is empty or not whole pages. EACCES: it is not in one piece of the file. */
int vnicgpu_owns(struct vnicgpu_file *f, u64 offset, u64 size);

/* Call it after the file's last user has gone. */
void vnicgpu_free_pieces(struct vnicgpu_file *f);

int vnicgpu_mmap(struct file *file, struct vm_area_struct *vma);

/* The dma-buf holds the file. */
int vnicgpu_export(struct file *file, struct vnicgpu_export *arg);

/* For the calling program. */
int vnicgpu_migrate(struct vnicgpu *gpu, struct vnicgpu_migrate *arg);
int vnicgpu_where(struct vnicgpu *gpu, const struct vnicgpu_where *arg);

/* Call it between vnicgpu_enter and vnicgpu_exit. False: the page is not in this GPU. */
bool vnicgpu_private_at(const struct vnicgpu *gpu, const struct page *page, u64 *offset);

/* Call it after the GPU's users have left (vnicgpu_enter). */
void vnicgpu_private_end(struct vnicgpu *gpu);

/* They report that a program's page was freed, and that free memory was allocated. Call them in any context. */
void vnicgpu_poison_left(struct vnicgpu *gpu, u64 offset);
void vnicgpu_poison_taken(struct vnicgpu *gpu, u64 offset, u64 size);

int vnicgpu_poison(struct vnicgpu *gpu, struct vnicgpu_poison *arg);

/* ENOMEM: no free page in the GPU. */
int vnicgpu_mailbox(struct vnicgpu *gpu);

/* Call it when no further notes can be sent. */
void vnicgpu_mailbox_end(struct vnicgpu *gpu);

/*
 * For a program's first notifier, Linux takes all locks of its memory, and gives up with EINTR if
 * a signal is pending (mm/vma.c, mm_take_all_locks). As fork does (kernel/fork.c), this returns
 * ERESTARTNOINTR then: Linux restarts the ioctl, whose changes the caller must undo.
 */
static inline int vnicgpu_watch(struct mmu_interval_notifier *n, struct mm_struct *mm, unsigned long start,
				unsigned long size, const struct mmu_interval_notifier_ops *ops)
{
	int ret = mmu_interval_notifier_insert(n, mm, start, size, ops);

	return ret == -EINTR ? -ERESTARTNOINTR : ret;
}

/* Asks the NIC to release pages of a region. */
struct vnicgpu_note {
	u32 region, generation, reason;
	u64 first, pages;
};

/*
 * Sends a note, and waits until the NIC has released the pages. ETIMEDOUT: no free slot or no
 * answer within gpu->ack_ms, or an earlier note that timed out is still unanswered. Sleeps,
 * allocates nothing, and no signal interrupts it.
 */
int vnicgpu_tell(struct vnicgpu *gpu, const struct vnicgpu_note *note);

/*
 * VNICGPU_REGION_OPEN is for the calling program, the others for any program that has the file.
 * Call the last two outside vnicgpu_enter and vnicgpu_exit.
 */
int vnicgpu_region_open(struct vnicgpu_file *f, struct vnicgpu_region_open *arg);
int vnicgpu_region_stats(struct vnicgpu_file *f, struct vnicgpu_region_stats *arg);
int vnicgpu_region_close(struct vnicgpu_file *f, const struct vnicgpu_region_close *arg);
int vnicgpu_region_fault(struct vnicgpu_file *f, struct vnicgpu_fault *arg);

/* Call it after the file's last user has gone. */
void vnicgpu_regions_close(struct vnicgpu_file *f);

/* Takes the pages of all regions from the NIC, and then frees the mailbox. */
void vnicgpu_regions_end(struct vnicgpu *gpu);

#endif
